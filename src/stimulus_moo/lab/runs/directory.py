"""Run directories: the files of one run or one study, how they are created and checked before a resume.

A run is one method and one seed of one experiment. Its directory holds

- ``settings.json``: the requested settings, versions, machine, data and tasks; written first;
- ``metrics.jsonl``: one line per step, in order; only appended to during the run;
- ``checkpoint-*.pt``: checkpoints of ``fit``;
- ``summary.json``: the last record, the final losses, stationarity and test metrics; written last, so it marks a
  complete run.

A study's directory holds ``settings.json``, ``cells.jsonl`` (one line per finished cell) and ``study.json``.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

import stimulus_moo
from stimulus_moo.lab.runs.library_commit import library_commit
from stimulus_moo.lab.runs.storage import RunError, plain, read_json

SETTINGS, METRICS, SUMMARY = "settings.json", "metrics.jsonl", "summary.json"
CELLS, STUDY = "cells.jsonl", "study.json"
#: Settings that older directories do not have, with the value that they had there.
ADDED: Mapping[str, Any] = {"reweigh": 1, "decay": 0.0}


def run_folder(out: Path, experiment: str, method: str, seed: int) -> Path:
    """Return the directory of a run below a directory of many runs.

    >>> run_folder(Path("runs"), "digits", "stimulus-m+", 0).as_posix()
    'runs/digits/stimulus-m+/seed-0'
    """
    return out / experiment / method / f"seed-{seed}"


def describe(asked: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of ``settings.json``: the requested settings, versions and machine."""
    return {
        **plain(asked),
        "versions": versions(),
        "threads": torch.get_num_threads(),
        "machine": {
            "system": platform.platform(),
            "processor": platform.machine(),
            "cores": os.cpu_count(),
            "accelerator": str(torch.accelerator.current_accelerator()) if torch.accelerator.is_available() else None,
        },
        "started": now(),
    }


def versions() -> dict[str, str]:
    """Return the versions of Python, this library, its commit if known, and the numerical packages."""
    own = {"stimulus_moo": stimulus_moo.__version__, **({"commit": commit} if (commit := library_commit()) else {})}
    return {"python": platform.python_version(), **own, **{name: version(name) for name in ("torch", "numpy", "scipy")}}


def processor() -> str:
    """Return the name of the processor, if the system reports it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def now() -> str:
    """Return the current time in UTC, as ISO 8601."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def open_folder(folder: Path, asked: Mapping[str, Any], resume: bool) -> dict[str, Any] | None:
    """Return the settings stored in a directory, or None if it is new. The caller holds the lock.

    Raises:
        RunError: the directory holds a run and ``resume`` is false, or a run with other settings, or a damaged one.
    """
    kept = read_json(folder / SETTINGS) if resume or not (folder / SETTINGS).exists() else {}
    if kept is None:
        stray = sorted(path.name for path in folder.glob("*") if path.name in (METRICS, SUMMARY, CELLS, STUDY))
        if stray:
            raise RunError(f"{folder} holds {stray[0]} without {SETTINGS}; remove the directory to start again")
        return None
    if not resume:
        raise occupied(folder)
    check_same(folder, kept, asked)
    return kept


def occupied(folder: Path) -> RunError:
    """Return the error for a directory that already holds a run."""
    return RunError(
        f"{folder} holds a run already; add --resume to continue it (complete runs are not repeated), or choose "
        "another --out"
    )


def check_same(folder: Path, kept: Mapping[str, Any], asked: Mapping[str, Any]) -> None:
    """Raise RunError, naming the first difference, unless the stored settings equal the requested ones."""
    for name, wanted in plain(asked).items():
        found = kept.get(name, ADDED.get(name))
        if isinstance(wanted, dict) and isinstance(found, dict):
            for key in sorted({*wanted, *found}):
                _check_value(folder, f"{name}[{key!r}]", found.get(key), wanted.get(key))
        else:
            _check_value(folder, name, found, wanted)


def _check_value(folder: Path, name: str, found: Any, wanted: Any) -> None:
    if found != wanted:
        raise RunError(
            f"{folder} was started with {name} = {found!r}, now it is {wanted!r}; resume with the same "
            "options, or choose another --out"
        )
