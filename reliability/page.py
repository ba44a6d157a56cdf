"""Render docs/reliability.md from results.json and text.md."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from benchmarks.report import Section, load, table
from stimulus_moo.training.files import write_whole

_TEXT = Path(__file__).with_name("text.md")


def save(folder: Path, path: Path, name: str, new: Section, order: Iterable[str]) -> None:
    """Add a section to the folder's results.json, and render the page again."""
    folder.mkdir(parents=True, exist_ok=True)
    known = {**load(folder), name: new}
    sections = {key: known[key] for key in order if key in known}
    write_whole(
        folder / "results.json", lambda file: file.write((json.dumps({"sections": sections}, indent=1) + "\n").encode())
    )
    write_whole(path, lambda file: file.write(render(sections).encode()))


def render(sections: dict[str, Section]) -> str:
    """Return the page."""
    parts = [_TEXT.read_text(encoding="utf-8").rstrip() + "\n", "## Counts\n", _counts(sections)]
    for name, found in sections.items():
        parts += [f"### {found['title']}\n", found["text"].strip() + "\n", _origin(name, found)]
        parts.append(table(found["columns"], found["rows"]))
    return "\n".join(parts)


def failures(name: str, found: Section) -> int:
    """Return the number of rows of a section that report a failure."""
    return sum(_failed(name, row) for row in found["rows"])


def _failed(name: str, row: list[str]) -> bool:
    if name == "kills":
        return row[4:] != ["0", "0", "0", "yes"]
    if name == "disks":
        return row[4] not in ("yes", "")
    if name == "calls":
        return row[4:] != ["0", "0"]
    return row[-1] not in (("0",) if name in ("machine", "fuzz") else ("yes", ""))


def _counts(sections: dict[str, Section]) -> str:
    """Return the table of totals over the existing sections."""

    def total(name: str, column: int) -> int:
        return sum(int(row[column]) for row in sections[name]["rows"])

    rows: list[list[object]] = []
    if "kills" in sections:
        rows.append(["kills survived", total("kills", 2), _command("kills")])
        lines = total("kills", 4) + total("kills", 5)
        rows.append(["metrics lines lost or doubled by them", lines, _command("kills")])
        rows.append(["bytes lost by them", total("kills", 6), _command("kills")])
    if "disks" in sections:
        tried = [row for row in sections["disks"]["rows"] if not row[1].startswith("not tried")]
        rows.append(["other faults injected: disks, signals, a second run", len(tried), _command("disks")])
    if "calls" in sections:
        rows.append(["calls and command lines fuzzed", f"{total('calls', 1):,}", _command("calls")])
    if "machine" in sections:
        rows.append(["calls of the state machine compared", f"{total('machine', 1):,}", _command("machine")])
    if "fuzz" in sections:
        rows.append(["files fuzzed", f"{total('fuzz', 1):,}", _command("fuzz")])
    if "soak" in sections:
        rows.append(["steps of the soak", sections["soak"]["rows"][0][1], "`make soak`"])
    broken = sum(failures(name, found) for name, found in sections.items())
    rows.append(["rows below in which something was lost or went wrong", broken, "`make faults`, `make soak`"])
    return table(["what", "count", "command"], rows)


def _command(name: str) -> str:
    return f"`python -m reliability {name}`"


def _origin(name: str, found: Section) -> str:
    quick = "**A quick run, which is only a smoke test.** " if found["quick"] else ""
    torch = found["versions"].get("torch")
    return (
        f"{quick}{_command(name)}, {found['date']}, {found['seconds']} s, commit {found['commit']}; "
        f"{found['machine']}, {found['threads']} torch threads; Python {found['python']}, torch {torch}.\n"
    )
