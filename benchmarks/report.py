"""Store results in results.json and render RESULTS.md: one section per benchmark, each with its own date."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from itertools import takewhile
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from stimulus_moo.lab.runs.directory import processor
from stimulus_moo.lab.runs.library_commit import library_commit

_PACKAGES = ("stimulus-moo", "torch", "numpy", "scipy", "torchjd", "quadprog", "lightgbm")
_INTRODUCTION = """\
# Benchmark results

Written by `make bench`, or section by section by `python -m benchmarks NAME`, from `results.json`. Both sides of a
ratio are measured in one process, in alternating blocks. Figures are medians. The column *bar* is the target that was
set before the measurement. The commit of a section is the last one that changed the library. `python -m
benchmarks` sets `MALLOC_TRIM_THRESHOLD_` and `MALLOC_MMAP_THRESHOLD_` so that glibc's allocator keeps the memory of
large models; otherwise page faults come and go on every side.
"""

Section = dict[str, Any]


def section(module: ModuleType, rows: Sequence[Sequence[object]], seconds: float, *, quick: bool) -> Section:
    """Return the record of one run of a benchmark."""
    return {
        "title": module.TITLE,
        "text": getattr(module, "TEXT", ""),
        "columns": list(module.COLUMNS),
        "rows": [[str(cell) for cell in row] for row in rows],
        "quick": quick,
        "seconds": round(seconds),
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "commit": library_commit() or "unknown",
        "python": platform.python_version(),
        "versions": {name: found for name in _PACKAGES if (found := _version(name))},
        "machine": f"{processor()}, {os.cpu_count()} cores",
        "threads": torch.get_num_threads(),
    }


def load(folder: Path) -> dict[str, Section]:
    """Return the sections in a folder's results.json; empty if the file does not exist."""
    path = folder / "results.json"
    if not path.exists():
        return {}
    sections: dict[str, Section] = json.loads(path.read_text(encoding="utf-8")).get("sections", {})
    return sections


def save(folder: Path, name: str, new: Section, order: Iterable[str]) -> None:
    """Add a section to results.json, in the given order, and render RESULTS.md again."""
    folder.mkdir(parents=True, exist_ok=True)
    sections = {**load(folder), name: new}
    places = {known: place for place, known in enumerate(order)}
    sections = dict(sorted(sections.items(), key=lambda item: places.get(item[0], len(places))))
    _write(folder / "results.json", json.dumps({"sections": sections}, indent=1) + "\n")
    _write(folder / "RESULTS.md", render(sections))


def render(sections: dict[str, Section]) -> str:
    """Return RESULTS.md."""
    parts = [_INTRODUCTION, _bars(sections)]
    for name, found in sections.items():
        parts += [f"## {found['title']}\n", found["text"].strip() + "\n", _origin(name, found)]
        parts.append(table(found["columns"], found["rows"]))
    return "\n".join(part for part in parts if part.strip())


def table(columns: Sequence[object], rows: Iterable[Sequence[object]]) -> str:
    """Return a table in Markdown."""
    lines = [_line(columns), "|---" * len(columns) + "|", *map(_line, rows)]
    return "\n".join(lines) + "\n"


def _line(cells: Iterable[object]) -> str:
    return "| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |"


def _bars(sections: dict[str, Section]) -> str:
    """Return all rows with a target, from every section with the columns "bar" and "met"."""
    rows = []
    for found in sections.values():
        columns = found["columns"]
        if "bar" in columns and "met" in columns:
            bar, met = columns.index("bar"), columns.index("met")
            rows += [
                [found["title"], _label(found["columns"], row[: min(3, bar)]), row[bar], row[met]]
                for row in found["rows"]
                if row[met]
            ]
    return "## Bars\n\n" + table(["section", "row", "bar", "met"], rows) if rows else ""


def _label(columns: Sequence[str], cells: Sequence[str]) -> str:
    """Return the label of a row: its first cell, and the text cells before the first number."""
    first, *rest = cells
    texts = takewhile(lambda cell: not cell[:1].isdigit(), rest)
    return ", ".join(filter(None, [f"{columns[0]} = {first}" if first.isdigit() else first, *texts]))


def _origin(name: str, found: Section) -> str:
    versions = ", ".join(f"{package} {number}" for package, number in found["versions"].items())
    quick = "**A quick run, whose figures mean nothing.** " if found["quick"] else ""
    return (
        f"{quick}`benchmarks/{name}.py`, {found['date']}, {found['seconds']} s, commit {found['commit']}; "
        f"{found['machine']}, {found['threads']} torch threads; Python {found['python']}, {versions}.\n"
    )


def _write(path: Path, text: str) -> None:
    partial = path.with_suffix(path.suffix + ".partial")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)  # atomic


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
