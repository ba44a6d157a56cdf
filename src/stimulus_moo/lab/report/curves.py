"""Curves over seeds: the mean, and the band from the lowest to the highest seed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from stimulus_moo.lab.report.groups import Entry
    from stimulus_moo.lab.runs import RecordedRun

Array = NDArray[np.float64]

#: The x axes, with their labels.
AXES = {
    "iterations": "Iterations",
    "samples": "Samples drawn",
    "gradients": "Gradient evaluations",
    "passes": "Passes",
    "seconds": "Seconds",
}

#: Maximum number of points of a trace.
MOST_POINTS = 1000


class Curve(NamedTuple):
    """Several columns over one x axis: ``x`` [points], and ``mean``, ``low``, ``high`` [points, columns]."""

    x: Array
    mean: Array
    low: Array
    high: Array
    seeds: int

    def pick(self, rows: NDArray[np.int64]) -> Curve:
        """Return the curve at some of its points."""
        return Curve(self.x[rows], self.mean[rows], self.low[rows], self.high[rows], self.seeds)


def aggregate(series: Sequence[tuple[Array, Array]]) -> Curve | None:
    """Return mean, lowest and highest over seeds, or None without data.

    Args:
        series: x [points] and y [points, columns] of each seed; non-finite rows of y are left out.

    Seeds with the same x are averaged directly. Otherwise each seed is interpolated linearly at the x of all seeds,
    within the range that all of them cover, so no seed is extrapolated.
    """
    clean = [_clean(x, y) for x, y in series]
    clean = [(x, y) for x, y in clean if len(x)]
    if not clean:
        return None
    first = clean[0][0]
    if all(np.array_equal(x, first) for x, _ in clean):
        grid, stack = first, np.stack([y for _, y in clean])
    else:
        start, stop = max(x[0] for x, _ in clean), min(x[-1] for x, _ in clean)
        union = np.unique(np.concatenate([x for x, _ in clean]))
        grid = union[(union >= start) & (union <= stop)]
        if not len(grid):
            return None
        stack = np.stack([_interpolate(grid, x, y) for x, y in clean])
    return Curve(grid, stack.mean(axis=0), stack.min(axis=0), stack.max(axis=0), len(clean))


def loss_curve(entry: Entry, axis: str) -> Curve | None:
    """Return the losses over the training set: one column per task, then their mean, then the worst task."""
    return aggregate([losses_of(run, axis) for run in entry.runs])


def stationarity_curve(entry: Entry, axis: str) -> Curve | None:
    """Return the Pareto stationarity, as one column."""
    return aggregate([_column(run, axis, "stationarity") for run in entry.runs])


def weight_curve(entry: Entry) -> Curve | None:
    """Return lambda at every iteration, one column per task."""
    return aggregate([_column(run, "iterations", "weights") for run in entry.runs])


def losses_of(run: RecordedRun, axis: str) -> tuple[Array, Array]:
    """Return x and the losses over the training set of one run: per task, their mean, and the worst."""
    x, y = _column(run, axis, "full_losses")
    return x, np.concatenate([y, y.mean(axis=1, keepdims=True), y.max(axis=1, keepdims=True)], axis=1) if len(x) else y


def evaluations(run: RecordedRun, key: str) -> list[dict[str, Any]]:
    """Return the records that have a key, followed by the summary if its evaluation is later."""
    rows = [row for row in run.records if row.get(key) is not None]
    last = run.summary
    at = last.get("step")
    if last.get(key) is not None and at is not None and (not rows or rows[-1]["step"] < at):
        rows.append(last)
    return rows


def thin(count: int, limit: int = MOST_POINTS) -> NDArray[np.int64]:
    """Return at most ``limit`` of the indices 0 ... count - 1, evenly spaced, including the first and the last.

    >>> thin(5, 3).tolist()
    [0, 2, 4]
    """
    if count <= limit:
        return np.arange(count)
    return np.unique(np.linspace(0, count - 1, max(limit, 2)).round().astype(np.int64))


def smooth(values: Array, window: int) -> Array:
    """Return the centred moving average of every column; the window is shorter near the ends.

    >>> smooth(np.array([[0.0], [3.0], [0.0], [3.0]]), 3).ravel().tolist()
    [1.5, 1.0, 2.0, 1.5]
    """
    half = max(window, 1) // 2
    total = np.concatenate([np.zeros((1, values.shape[1])), values.cumsum(axis=0)])
    at = np.arange(len(values))
    stop, start = np.minimum(at + half + 1, len(values)), np.maximum(at - half, 0)
    averaged: Array = (total[stop] - total[start]) / (stop - start)[:, None]
    return averaged


def smoothing_window(points: int) -> int:
    """Return the smoothing window of lambda: an odd number, about 1/25 of the run."""
    return max(points // 25, 1) | 1


def uneven(curves: Sequence[Curve]) -> bool:
    """Return whether the ends of the curves differ by more than a factor of four, so that a log x axis is better."""
    ends = [curve.x[-1] for curve in curves]
    return len(ends) > 1 and min(ends) > 0 and max(ends) > 4 * min(ends)


def wide_range(columns: Sequence[tuple[Curve, int]]) -> bool:
    """Return whether the values are positive and span more than a factor of fifty, so that a log scale is better."""
    values = np.concatenate([curve.mean[:, column] for curve, column in columns]) if columns else np.ones(1)
    return bool(values.min() > 0 and values.max() > 50 * values.min())


def _column(run: RecordedRun, axis: str, key: str) -> tuple[Array, Array]:
    """Return x and y of one run; nothing if its records do not have this axis, as in directories of older versions."""
    rows = evaluations(run, key)
    if axis != "iterations" and any(row.get(axis) is None for row in rows):
        rows = []
    x = np.array([row["step"] + 1 if axis == "iterations" else row[axis] for row in rows], dtype=np.float64)
    values = [row[key] if isinstance(row[key], list | tuple) else [row[key]] for row in rows]
    y = np.array([[np.nan if v is None else v for v in value] for value in values], dtype=np.float64)
    return x, y


def _clean(x: Array, y: Array) -> tuple[Array, Array]:
    if not len(x):
        return x, y
    finite = np.isfinite(y).all(axis=1)
    return x[finite], y[finite]


def _interpolate(grid: Array, x: Array, y: Array) -> Array:
    return np.stack([np.interp(grid, x, column) for column in y.T], axis=1)
