"""Reading of run directories. Damaged parts are left out with a warning."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stimulus_moo import METHODS, InvalidOption, StimulusWarning
from stimulus_moo.lab.runs.directory import METRICS, SETTINGS, STUDY, SUMMARY
from stimulus_moo.lab.runs.storage import RunError, read_json, read_lines

_COUNTS = ("step", "samples", "gradients")


@dataclass(frozen=True)
class RecordedRun:
    """One run as read from its directory.

    Attributes:
        experiment, method, seed: identity of the run.
        settings: content of ``settings.json``: every setting by its name, versions, machine, data and tasks.
        records: lines of ``metrics.jsonl`` in order, without skipped steps.
        summary: content of ``summary.json``; empty for an incomplete run.
        folder: the run directory.
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
        """Whether the run has ended, after its last step or because it diverged."""
        return bool(self.summary)


def load_runs(folder: str | Path) -> list[RecordedRun]:
    """Return every run in a directory and its subdirectories, sorted by experiment, method and seed.

    Damaged parts are left out with a ``StimulusWarning``: a line, a summary, or a run without settings.

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
            _warn(f"{path} does not hold the settings of a run; it is left out")
            continue
        runs.append(_load_run(path.parent, settings))
    order = list(METHODS)
    return sorted(runs, key=lambda run: (run.experiment, _rank(order, run.method), run.method, run.seed))


def load_studies(folder: str | Path) -> list[dict[str, Any]]:
    """Return the ``study.json`` of every complete study in a directory and its subdirectories, sorted by name.

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
    """Return the valid records of a run, with rising steps, and one sentence for every invalid line."""
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


def _load_run(folder: Path, settings: dict[str, Any]) -> RecordedRun:
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
    return RecordedRun(settings["experiment"], settings["method"], settings["seed"], settings, records, summary, folder)


def _files(folder: str | Path, name: str) -> list[Path]:
    folder = Path(folder)
    if not folder.is_dir():
        raise InvalidOption(f"{folder} is not a directory; name one that holds runs")
    return sorted(folder.rglob(name))


def _rank(order: list[str], method: str) -> int:
    return order.index(method) if method in order else len(order)


def _warn(message: str) -> None:
    warnings.warn(message, StimulusWarning, stacklevel=3)
