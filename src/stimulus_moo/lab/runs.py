"""Run directories: what one run or one study keeps on the disk, and how it is read back.

A run is one method and one seed of one experiment. Its directory holds

- ``settings.json``: what was asked for, versions, machine, data and tasks; written before anything else;
- ``metrics.jsonl``: one line per step, in order, only ever appended to while the run lasts;
- ``checkpoint-*.pt``: where ``fit`` continues, and ``progress.json``, the seconds spent until then;
- ``summary.json``: the last record, the final losses, stationarity and test metrics; written last, so that it marks a
  complete run.

A study's directory holds ``settings.json``, ``cells.jsonl`` (one line per finished cell) and ``study.json``.
"""

from __future__ import annotations

import math
import os
import platform
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

import stimulus_moo
from stimulus_moo import METHODS, InvalidOption, StimulusWarning
from stimulus_moo.lab.storage import RunError, plain, read_json, read_lines

SETTINGS, METRICS, SUMMARY, PROGRESS = "settings.json", "metrics.jsonl", "summary.json", "progress.json"
CELLS, STUDY = "cells.jsonl", "study.json"
_COUNTS = ("step", "samples", "gradients")


@dataclass(frozen=True)
class Run:
    """One run, read back.

    Attributes:
        experiment, method, seed: which run it is.
        settings: the whole of ``settings.json``: every setting by its name, versions, machine, data and tasks.
        records: the lines of ``metrics.jsonl`` in order, without those of skipped steps.
        summary: the whole of ``summary.json``; empty while the run is not complete.
        folder: where it was found.
    """

    experiment: str
    method: str
    seed: int
    settings: dict[str, Any]
    records: list[dict[str, Any]]
    summary: dict[str, Any]
    folder: Path

    @property
    def complete(self) -> bool:
        """Whether the run has ended, by reaching its steps or by diverging."""
        return bool(self.summary)


def run_folder(out: Path, experiment: str, method: str, seed: int) -> Path:
    """Return where a run is kept under a directory of many.

    >>> run_folder(Path("runs"), "digits", "stimulus-m+", 0).as_posix()
    'runs/digits/stimulus-m+/seed-0'
    """
    return out / experiment / method / f"seed-{seed}"


def describe(asked: Mapping[str, Any]) -> dict[str, Any]:
    """Return what ``settings.json`` holds: what was asked for, and on what it runs."""
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
    """Return the versions of everything that decides the numbers."""
    packages = {name: version(name) for name in ("torch", "numpy", "scipy")}
    return {"python": platform.python_version(), "stimulus_moo": stimulus_moo.__version__, **packages}


def now() -> str:
    """Return the time, in UTC."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def open_folder(folder: Path, asked: Mapping[str, Any], resume: bool) -> dict[str, Any] | None:
    """Return the settings that a directory was started with, or None where there is nothing yet; its lock is held.

    Raises:
        RunError: it holds something and ``resume`` is false, or what it holds was started with other settings or is
            damaged.
    """
    _remove_leftovers(folder)
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


def _remove_leftovers(folder: Path) -> None:
    """Remove what a killed process was writing beside a file; the file itself is whole."""
    for name in (SETTINGS, METRICS, SUMMARY, PROGRESS, CELLS, STUDY, "checkpoint-*.pt"):
        for path in folder.glob(f".{name}.*"):
            path.unlink(missing_ok=True)


def occupied(folder: Path) -> RunError:
    """Return the error of a directory that holds a run already."""
    return RunError(
        f"{folder} holds a run already; add --resume to continue it (what is complete is kept), or choose another --out"
    )


def check_same(folder: Path, kept: Mapping[str, Any], asked: Mapping[str, Any]) -> None:
    """Raise RunError, naming the first difference, unless a directory was started with what is asked for now."""
    for name, wanted in plain(asked).items():
        found = kept.get(name)
        if isinstance(wanted, dict) and isinstance(found, dict):
            for key in sorted({*wanted, *found}):
                _check_value(folder, f"{name}[{key!r}]", found.get(key), wanted.get(key))
        else:
            _check_value(folder, name, found, wanted)


def _check_value(folder: Path, name: str, found: Any, wanted: Any) -> None:
    if found != wanted:
        raise RunError(
            f"{folder} was started with {name} = {found!r}, now it is {wanted!r}; resume with the same options, or "
            "choose another --out"
        )


def load_runs(folder: str | Path) -> list[Run]:
    """Return every run in a directory and below, by experiment, method and seed.

    What is damaged is named in a ``StimulusWarning`` and left out: a line, a summary, or a run without settings.

    Raises:
        InvalidOption: there is no such directory.
    """
    runs = []
    for path in _files(folder, SETTINGS):
        try:
            settings = read_json(path) or {}
        except RunError as error:
            _warn(str(error))
            continue
        if "study" in settings:
            continue
        if not {"experiment", "method", "seed"} <= settings.keys():
            _warn(f"{path} is not the settings of a run; it is left out")
            continue
        runs.append(_load_run(path.parent, settings))
    order = list(METHODS)
    return sorted(runs, key=lambda run: (run.experiment, _rank(order, run.method), run.method, run.seed))


def load_studies(folder: str | Path) -> list[dict[str, Any]]:
    """Return the ``study.json`` of every complete study in a directory and below, by name.

    Raises:
        InvalidOption: there is no such directory.
    """
    studies = []
    for path in _files(folder, STUDY):
        try:
            studies.append(read_json(path) or {})
        except RunError as error:
            _warn(str(error))
    return sorted(studies, key=lambda study: str(study.get("name")))


def read_records(folder: Path) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the records of a run whose steps count up from 0, and a sentence for everything that is not one."""
    lines, problems = read_lines(folder / METRICS)
    records: list[dict[str, Any]] = []
    for line in lines:
        if not all(isinstance(line.get(key), int) for key in _COUNTS) or not isinstance(line.get("losses"), list):
            problems.append(f"{folder / METRICS}: a line without step, samples, gradients and losses")
        elif records and line["step"] <= records[-1]["step"]:
            problems.append(f"{folder / METRICS}: step {line['step']} comes after step {records[-1]['step']}")
        else:
            records.append(line)
    return records, problems


def _load_run(folder: Path, settings: dict[str, Any]) -> Run:
    lines, problems = read_records(folder)
    for problem in problems:
        _warn(f"{problem}; it is left out")
    records = [line for line in lines if not line.get("skipped")]
    try:
        summary = read_json(folder / SUMMARY) or {}
    except RunError as error:
        _warn(str(error))
        summary = {}
    for record in records:
        for key in ("sq_norm", "stationarity"):
            if key in record and record[key] is None:  # JSON has no infinity
                record[key] = math.nan
    return Run(settings["experiment"], settings["method"], settings["seed"], settings, records, summary, folder)


def _files(folder: str | Path, name: str) -> list[Path]:
    folder = Path(folder)
    if not folder.is_dir():
        raise InvalidOption(f"{folder} is not a directory; name one that holds runs")
    return sorted(folder.rglob(name))


def _rank(order: list[str], method: str) -> int:
    return order.index(method) if method in order else len(order)


def _warn(message: str) -> None:
    warnings.warn(message, StimulusWarning, stacklevel=3)
