"""Callback that stores the metrics of a run, exactly one line per step even if the run is resumed."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from stimulus_moo import Progress, StimulusWarning
from stimulus_moo.lab.runs.directory import METRICS, SETTINGS, now, versions
from stimulus_moo.lab.runs.reading import read_records
from stimulus_moo.lab.runs.storage import Appender, plain, read_json, write_json, write_lines

_RECORD = ("step", "samples", "gradients", "passes", "seconds", "losses", "weights", "sq_norm", "anchored", "lr")
_SOMETIMES = ("skipped", "stationarity", "full_losses")


class Recorder:
    """Writes ``settings.json`` at the first step and one line of ``metrics.jsonl`` at every step.

    ``fit`` resumes from its last checkpoint, so lines from the first reported step on are discarded. Lines are on disk
    before the checkpoint that covers them, so no earlier line is missing.

    Args:
        folder: the run directory.
        description: content of ``settings.json``; if the file exists, only the resumption is added to it.
        every: steps between two checkpoints of ``fit``.
    """

    def __init__(self, folder: Path, description: dict[str, Any], every: int) -> None:
        self._folder, self._description, self._every = folder, description, every
        self._lines: Appender | None = None
        self.last: dict[str, Any] = {}

    def __call__(self, told: Progress) -> None:
        """Store a step."""
        first = told.record["step"]
        lines = self._lines or self._open(first)
        self.last = told.record
        lines.append(line(told.record))
        if told.step % self._every == 0:
            lines.sync()

    def begin(self) -> None:
        """Write the settings, or record in them that the run was resumed."""
        path = self._folder / SETTINGS
        kept = read_json(path)
        if kept is None:
            write_json(path, self._description)
        else:
            resumed = [*kept.get("resumed", []), {"at": now(), "versions": versions()}]
            write_json(path, {**kept, "resumed": resumed})

    def pause(self) -> None:
        """Flush everything to disk after a signal. ``fit`` has already saved its checkpoint."""
        if self._lines is not None:
            self._lines.sync()

    def finish(self, history: Iterable[dict[str, Any]], evaluate_every: int | None) -> dict[str, Any]:
        """Rewrite the metrics after the last step, and return the last record.

        The last line receives the final evaluation, and damaged lines are restored from the history in the checkpoint.
        Evaluations caused only by an interruption are removed, so the file equals that of an uninterrupted run, except
        for the seconds.
        """
        if self._lines is None:  # resumed after the last step, before the summary
            self._take_over(None)
            self.begin()
        records = list(history)
        kept = [
            record if _is_due(record, evaluate_every) or i == len(records) - 1 else _bare(record)
            for i, record in enumerate(records)
        ]
        self.close()
        write_lines(self._folder / METRICS, map(line, kept))
        return kept[-1]

    def diverge(self) -> dict[str, Any]:
        """Return the last record of a diverged run; empty if it took no step."""
        if self._lines is None:
            self._take_over(None)
            self.begin()
            self.last = next(iter(read_records(self._folder)[0][-1:]), {})
        self.close()
        return self.last

    def close(self) -> None:
        """Close the metrics file."""
        if self._lines is not None:
            self._lines.sync()
            self._lines.close()
            self._lines = None

    def _open(self, first: int) -> Appender:
        self._take_over(first)
        self.begin()
        self._lines = Appender(self._folder / METRICS)
        return self._lines

    def _take_over(self, first: int | None) -> None:
        """Remove lines of an earlier process: those from step ``first`` on, and damaged ones."""
        path = self._folder / METRICS
        records, problems = read_records(self._folder)
        kept = [record for record in records if first is None or record["step"] < first]
        if first is not None and len(kept) != first:
            which = f" ({problems[0]})" if problems else ""
            _warn(
                f"{path}: {first - len(kept)} of the first {first} lines are missing or damaged{which}; "
                "they are restored from the checkpoint when the run ends"
            )
        if problems or len(kept) != len(records):
            write_lines(path, map(line, kept))


class Bystander(Recorder):
    """Recorder of the processes other than the first. It writes nothing."""

    def __call__(self, told: Progress) -> None:
        """Remember the last step."""
        self.last = told.record

    def pause(self) -> None:
        """Do nothing; the first process writes."""

    def finish(self, history: Iterable[dict[str, Any]], evaluate_every: int | None) -> dict[str, Any]:
        """Return the last record."""
        return list(history)[-1]

    def diverge(self) -> dict[str, Any]:
        """Return the last record of a diverged run; empty if it took no step in this process."""
        return self.last


def line(record: Mapping[str, Any]) -> str:
    """Return a record as a line of ``metrics.jsonl``, with a fixed order of keys.

    >>> line({"anchored": True, "step": 0, "samples": 4, "gradients": 4, "losses": [0.5], "weights": [1], "sq_norm": 2})
    '{"step": 0, "samples": 4, "gradients": 4, "losses": [0.5], "weights": [1], "sq_norm": 2, "anchored": true}'
    """
    ordered = {key: record[key] for key in (*_RECORD, *_SOMETIMES) if key in record}
    return json.dumps(plain(ordered), allow_nan=False)


def _is_due(record: Mapping[str, Any], evaluate_every: int | None) -> bool:
    return evaluate_every is not None and (record["step"] + 1) % evaluate_every == 0


def _bare(record: Mapping[str, Any]) -> dict[str, Any]:
    return {key: record[key] for key in (*_RECORD, "skipped") if key in record}


def _warn(message: str) -> None:
    warnings.warn(message, StimulusWarning, stacklevel=3)
