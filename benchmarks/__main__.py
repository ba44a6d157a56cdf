"""``make bench``: run all benchmarks or the named ones, print the tables, write RESULTS.md and results.json.

python -m benchmarks [NAME ...] [--quick] [--out FOLDER]

Sections of benchmarks that are not run are not changed. Each of several benchmarks runs in its own process, so that
they do not share memory or compiled code. ``--quick`` is a smoke test that writes to runs/benchmarks.
"""

from __future__ import annotations

import argparse
import inspect
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from benchmarks import report

#: in the order of RESULTS.md
NAMES = (
    "step_cost",
    "kept_weights",
    "stages",
    "engines",
    "memory",
    "anchor",
    "distributed",
    "split_models",
    "end_to_end",
    "solver",
    "ranking",
    "amortised",
    "forced",
    "hands_free",
    "auto_cost",
    "fronts",
    "moves",
)

#: glibc's allocator then keeps memory. Otherwise it returns the gradients of a large model to the system, or not, as it
#: happens, and page faults can take as long as the arithmetic, on every side.
_ALLOCATOR = {"MALLOC_TRIM_THRESHOLD_": "4000000000", "MALLOC_MMAP_THRESHOLD_": "4000000000"}

_HERE = Path(__file__).parent


def main(arguments: Sequence[str] | None = None) -> int:
    there = [name for name in NAMES if find_spec(f"benchmarks.{name}")]
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Run benchmarks and render RESULTS.md.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(there)}; default all")
    parser.add_argument("--quick", action="store_true", help="smoke test with tiny sizes; the figures mean nothing")
    parser.add_argument("--out", type=Path, help="the folder to write to; default benchmarks, quick runs/benchmarks")
    options = parser.parse_args(arguments)
    unknown = sorted(set(options.names) - set(there))
    if unknown:
        parser.error(f"there is no benchmark {unknown[0]!r}; there are {', '.join(there)}")
    names = options.names or there
    folder = options.out or (_HERE.parent / "runs" / "benchmarks" if options.quick else _HERE)
    if len(names) == 1:
        run(names[0], folder, quick=options.quick)
        return 0
    flags = ["--out", str(folder), *(["--quick"] if options.quick else [])]
    command = [sys.executable, "-m", "benchmarks"]
    failed = [name for name in names if subprocess.run([*command, name, *flags], cwd=_HERE.parent).returncode]
    if failed:
        print(f"failed, their sections are as before: {', '.join(failed)}", file=sys.stderr)
    return len(failed)


def run(name: str, folder: Path, *, quick: bool) -> None:
    """Run one benchmark, print its table and add its section to the folder's results."""
    module = import_module(f"benchmarks.{name}")
    takes_quick = "quick" in inspect.signature(module.rows).parameters
    start = time.perf_counter()
    rows = module.rows(quick=quick) if takes_quick else module.rows()
    seconds = time.perf_counter() - start
    report.save(folder, name, report.section(module, rows, seconds, quick=quick and takes_quick), NAMES)
    print(f"{module.TITLE} ({seconds:.0f} s)\n\n{report.table(module.COLUMNS, rows)}", flush=True)


if __name__ == "__main__":
    if not os.environ.keys() >= _ALLOCATOR.keys():
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], {**os.environ, **_ALLOCATOR})
    sys.exit(main())
