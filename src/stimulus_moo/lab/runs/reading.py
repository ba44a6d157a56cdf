"""Reading of run directories. Damaged parts are left out with a warning."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stimulus_moo import InvalidOption, StimulusWarning
from stimulus_moo.lab.methods import LAB_METHODS
from stimulus_moo.lab.runs.directory import ADDED, METRICS, SETTINGS, STUDY, SUMMARY
from stimulus_moo.lab.runs.schema import record_problem, settings_problem, study_problem, summary_problem
from stimulus_moo.lab.runs.storage import RunError, read_json, read_lines


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

    Damaged parts are left out with a ``StimulusWarning`` that names them: a line, an unreadable summary, or a run whose
    settings or summary have a field of a wrong type.

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
        try:
            runs.append(_load_run(path.parent, {**ADDED, **settings}))
        except RunError as error:
            _warn(f"{error}; the run is left out")
    order = list(LAB_METHODS)
    return sorted(runs, key=lambda run: (run.experiment, _rank(order, run.method), run.method, run.seed))


def load_studies(folder: str | Path) -> list[dict[str, Any]]:
    """Return the ``study.json`` of every complete study in a directory and its subdirectories, sorted by name.

    Raises:
        InvalidOption: there is no such directory.
    """
    studies = []
    for path in _files(folder, STUDY):
        try:
            study = read_json(path) or {}
        except RunError as error:
            _warn(str(error))
            continue
        problem = study_problem(study)
        if problem:
            _warn(f"{path}: {problem}; the study is left out")
        else:
            studies.append(study)
    return sorted(studies, key=lambda study: str(study.get("name")))


def read_records(folder: Path) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the valid records of a run, with rising steps, and one sentence for every invalid line."""
    lines, problems = read_lines(folder / METRICS)
    records: list[dict[str, Any]] = []
    objectives = None
    for line in lines:
        problem = record_problem(line, objectives)
        if problem:
            problems.append(f"{folder / METRICS}: a damaged line ({problem})")
        elif records and line["step"] <= records[-1]["step"]:
            problems.append(f"{folder / METRICS}: step {line['step']} comes after step {records[-1]['step']}")
        else:
            records.append(line)
            objectives = len(line["losses"])
    return records, problems


def _load_run(folder: Path, settings: dict[str, Any]) -> RecordedRun:
    check_fields(folder / SETTINGS, settings_problem(settings))
    lines, problems = read_records(folder)
    for problem in problems:
        _warn(f"{problem}; it is left out")
    records = [line for line in lines if not line.get("skipped")]
    try:
        summary = read_json(folder / SUMMARY) or {}
    except RunError as error:
        _warn(str(error))
        summary = {}
    objectives = len(settings.get("tasks") or ()) or (len(lines[0]["losses"]) if lines else None)
    check_fields(folder / METRICS, record_problem(lines[0], objectives) if lines else None)
    check_fields(folder / SUMMARY, summary_problem(summary, objectives) if summary else None)
    for record in records:
        for key in ("sq_norm", "stationarity"):
            if key in record and record[key] is None:  # JSON has no infinity
                record[key] = math.nan
    return RecordedRun(settings["experiment"], settings["method"], settings["seed"], settings, records, summary, folder)


def check_fields(path: Path, problem: str | None) -> None:
    """Raise RunError, naming the file, if there is a problem with one of its fields."""
    if problem:
        raise RunError(f"{path}: {problem}")


def _files(folder: str | Path, name: str) -> list[Path]:
    folder = Path(folder)
    if not folder.is_dir():
        raise InvalidOption(f"{folder} is not a directory; name one that holds runs")
    return sorted(folder.rglob(name))


def _rank(order: list[str], method: str) -> int:
    return order.index(method) if method in order else len(order)


def _warn(message: str) -> None:
    warnings.warn(message, StimulusWarning, stacklevel=3)
