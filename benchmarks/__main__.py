"""``make bench``: run every benchmark, print its table, write RESULTS.md and results.json."""

from __future__ import annotations

import json
import os
import platform
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

import torch

NAMES = ("step_cost", "solver")


def main() -> None:
    folder = Path(__file__).parent
    packages = ("torch", "numpy", "scipy", "torchjd", "stimulus-moo")
    machine = f"{platform.machine()}, {os.cpu_count()} cores, {torch.get_num_threads()} torch threads"
    versions = ", ".join(f"{name} {version(name)}" for name in packages)
    lines = [
        "# Benchmark results",
        "",
        f"Made by `make bench` on {machine}; Python {platform.python_version()}, {versions}.",
    ]
    lines += ["Both sides of a ratio are taken in one process, in alternating blocks; figures are medians.", ""]
    results = {}
    for name in NAMES:
        module = import_module(f"benchmarks.{name}")
        rows = module.rows()
        results[name] = {"title": module.TITLE, "columns": module.COLUMNS, "rows": rows}
        lines += [
            f"## {module.TITLE}",
            "",
            "| " + " | ".join(module.COLUMNS) + " |",
            "|---" * len(module.COLUMNS) + "|",
        ]
        lines += ["| " + " | ".join(map(str, row)) + " |" for row in rows] + [""]
        print("\n".join(lines[-len(rows) - 4 :]))
    (folder / "RESULTS.md").write_text("\n".join(lines), encoding="utf-8")
    report = {"machine": machine, "versions": versions, **results}
    (folder / "results.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
