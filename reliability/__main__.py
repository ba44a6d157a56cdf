"""``make faults`` and ``make soak``: run all checks or the named ones, and write docs/reliability.md.

python -m reliability [NAME ...] [--quick]
python -m reliability soak [--minutes M] [--steps N]

Sections of checks that are not run are not changed. Each check runs in its own process. ``--quick`` is a smoke test
that writes to runs/reliability.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks import report
from reliability import page

#: in the order of the page; the soak takes half an hour and runs only if named
NAMES = ("kills", "disks", "calls", "machine", "fuzz", "soak")

_ROOT = Path(__file__).parents[1]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m reliability", description="Inject faults and report the results.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(NAMES)}; default all but soak")
    parser.add_argument("--quick", action="store_true", help="smoke test with a few of each")
    parser.add_argument("--minutes", type=float, help="duration of the soak; default 30")
    parser.add_argument("--steps", type=int, help="number of steps of the soak; default 100000")
    options = parser.parse_args(arguments)
    size = {key: value for key in ("minutes", "steps") if (value := getattr(options, key)) is not None}
    if size and options.names != ["soak"]:
        parser.error("--minutes and --steps are for the soak alone")
    unknown = sorted(set(options.names) - set(NAMES))
    if unknown:
        parser.error(f"there is no check {unknown[0]!r}; there are {', '.join(NAMES)}")
    names = options.names or [name for name in NAMES if name != "soak"]
    if len(names) == 1:
        return run(names[0], quick=options.quick, **size)
    flags = ["--quick"] if options.quick else []
    command = [sys.executable, "-m", "reliability"]
    return sum(bool(subprocess.run([*command, name, *flags], cwd=_ROOT).returncode) for name in names)


def run(name: str, *, quick: bool, **size: Any) -> int:
    """Run one check, print its table, write the page, and return the number of failures."""
    module = import_module(f"reliability.{name}")
    start = time.perf_counter()
    rows = module.rows(quick=quick, **size)
    found = report.section(module, rows, time.perf_counter() - start, quick=quick)
    if quick:
        page.save(_ROOT / "runs" / "reliability", _ROOT / "runs" / "reliability" / "reliability.md", name, found, NAMES)
    else:
        page.save(_ROOT / "reliability", _ROOT / "docs" / "reliability.md", name, found, NAMES)
    print(f"{module.TITLE} ({found['seconds']} s)\n\n{report.table(module.COLUMNS, rows)}", flush=True)
    return page.failures(name, found)


if __name__ == "__main__":
    sys.exit(main())
