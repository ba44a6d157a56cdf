"""Scores over seeds, at the end of a run and at equal cost, for tables and verdicts."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from stimulus_moo.lab.report.curves import evaluations, losses_of

if TYPE_CHECKING:
    from stimulus_moo.lab.report.groups import Entry, Group
    from stimulus_moo.lab.runs import RecordedRun

#: Test metrics for which higher is better; for all others lower is better.
HIGHER_IS_BETTER = frozenset({"accuracy", "balanced accuracy", "NDCG@10"})

#: Columns of the losses after those of the tasks.
MEAN, WORST = -2, -1


@dataclass(frozen=True)
class Score:
    """One number per seed, without non-finite ones; ``std`` is the sample standard deviation, 0 for one seed."""

    values: tuple[float, ...]

    @classmethod
    def of(cls, values: Iterable[float | None]) -> Score | None:
        """Return the score, or None if no seed has a finite value."""
        finite = tuple(float(v) for v in values if v is not None and math.isfinite(v))
        return cls(finite) if finite else None

    @property
    def mean(self) -> float:
        """The mean over seeds."""
        return float(np.mean(self.values))

    @property
    def std(self) -> float:
        """The sample standard deviation over seeds."""
        return float(np.std(self.values, ddof=1)) if len(self.values) > 1 else 0.0

    def apart(self, other: Score) -> bool:
        """Return whether the ranges over seeds are disjoint."""
        return min(self.values) > max(other.values) or max(self.values) < min(other.values)


def final_losses(run: RecordedRun) -> list[float]:
    """Return the final losses over the training set: per task, their mean, the worst; empty if not evaluated."""
    x, y = losses_of(run, "iterations")
    return [float(value) for value in y[-1]] if len(x) else []


def final_loss(entry: Entry, column: int) -> Score | None:
    """Return one column of the final losses, over seeds."""
    return Score.of(row[column] for row in map(final_losses, entry.runs) if row)


def final_stationarity(entry: Entry) -> Score | None:
    """Return the final stationarity, over seeds."""
    rows = [evaluations(run, "stationarity") for run in entry.runs]
    return Score.of(row[-1]["stationarity"] for row in rows if row)


def counter(entry: Entry, key: str) -> Score | None:
    """Return the final ``samples``, ``gradients``, ``passes`` or ``seconds``, over seeds."""
    return Score.of(last_count(run, key) for run in entry.runs)


def iterations(entry: Entry) -> Score | None:
    """Return the number of iterations, over seeds."""
    steps = (last_count(run, "step") for run in entry.runs)
    return Score.of(None if step is None else step + 1 for step in steps)


def last_count(run: RecordedRun, key: str) -> float | None:
    """Return a counter from the summary or, for an incomplete run, from its last record."""
    value = run.summary.get(key)
    return value if value is not None else (run.records[-1].get(key) if run.records else None)


def test_metrics(group: Group) -> list[str]:
    """Return the names of the test metrics, without duplicates."""
    return list(dict.fromkeys(name for run in group.runs for name in (run.summary.get("test") or {})))


def test_score(entry: Entry, metric: str, task: int | None) -> Score | None:
    """Return a test metric of one task, or its mean over tasks, over seeds."""
    values = []
    for run in entry.runs:
        row = [math.nan if v is None else float(v) for v in (run.summary.get("test") or {}).get(metric) or ()]
        if task is None:
            values.append(float(np.mean(row)) if row else math.nan)
        else:
            values.append(row[task] if task < len(row) else math.nan)
    return Score.of(values)


def cost_of(group: Group) -> str:
    """Return the cost at which methods are compared: seconds with such a budget, else passes.

    Runs of early versions did not count passes: then gradients.
    """
    if all(run.settings.get("seconds") and not run.settings.get("passes") for run in group.runs):
        return "seconds"
    begun = [run for run in group.runs if last_count(run, "gradients")]
    return "passes" if all(last_count(run, "passes") for run in begun) else "gradients"


def equal_budget(group: Group) -> float | None:
    """Return the cost, see ``cost_of``, that every run reached, or None if all are equal to within 5 %.

    It is the smallest total of the methods that did not diverge.
    """
    cost = cost_of(group)
    found = [last_count(run, cost) for entry in group.entries if not entry.diverged for run in entry.runs]
    totals = [total for total in found if total]
    return min(totals) if totals and max(totals) > 1.05 * min(totals) else None


def loss_at(entry: Entry, axis: str, x: float, column: int = MEAN) -> Score | None:
    """Return a loss at a point of an axis, interpolated between evaluations; None if a seed did not reach it."""
    values = []
    for run in entry.runs:
        at, losses = losses_of(run, axis)
        if not len(at) or x < at[0] or x > at[-1]:
            return None
        values.append(float(np.interp(x, at, losses[:, column])))
    return Score.of(values)


def normalised_losses(group: Group) -> dict[str, list[float]]:
    """Return the final losses of each entry, divided by the largest over the entries, per task.

    Entries with a diverged seed and entries without evaluation are left out: they would distort the scale.
    """
    rows = {}
    for entry in group.entries:
        scores = [final_loss(entry, s) for s in range(len(group.tasks))]
        if not entry.diverged and all(scores):
            rows[entry.label] = [score.mean for score in scores if score is not None]
    if not rows:
        return {}
    largest = np.max(list(rows.values()), axis=0)
    return {label: (np.array(row) / np.where(largest > 0, largest, 1.0)).tolist() for label, row in rows.items()}
