"""Whole fronts: ``pareto_front`` on problems with known fronts, fairness data and images, beside sweeps of weights."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.cells import Found, fill
from benchmarks.data_fronts import IMAGES, TABLES, data_front, data_sweep
from benchmarks.data_fronts import POINTS as DATA_POINTS
from benchmarks.known_fronts import ADAM, NOISE, OURS, POINTS, SMGD, TOP, N, known, quality, volume
from stimulus_moo.lab.synthetic.zdt import TRACED

_FOLDER, _VERSION, _RIVALS = Path("runs/benchmarks/fronts"), "6", "5"  # versions of our cells and of the rivals'
_SEEDS, _STEPS = 5, 1200  # steps of a point from scratch, on known fronts
_RATES = (0.01, 0.03, 0.1)  # of the rivals on known fronts; the best of them is shown
_DATA_RATES = (0.001, 0.003, 0.01)  # of Adam on networks
_SETTINGS: dict[str, dict[str, Any]] = {
    **{name: {"steps": 1000, "batch": 256} for name in TABLES},
    **{name: {"steps": 300, "batch": 256, "n": 10_000} for name in IMAGES},
}
_IMAGE_SEEDS = 1  # a front of images takes ten minutes
_IMAGE_RATES = (0.001,)

#: EPO and GMOOAR, test hypervolume at (2, 2), as published
_PUBLISHED = {
    "adult": "3.342 / 3.344",
    "compas": "3.709 / 3.719",
    "credit": "3.119 / 3.123",
    "multimnist": "2.95 / 3.02",
    "multifashion": "2.31 / 2.33",
    "fashion+mnist": "2.86 / 2.92",
}

TITLE = "Fronts: pareto_front against sweeps of weights, on known fronts, fairness data and images"
TEXT = f"""\
Known fronts: two losses (three for DTLZ2) of a point in 2 or 5 dimensions, as finite sums of {N} terms with zero-mean
noise {NOISE}. `pareto_front` trains {POINTS} points with {_STEPS} steps for an end; mean over seeds, and the worst seed
in brackets. `{ADAM}` minimises {POINTS} weighted sums with {_STEPS} steps each from random starts, `{SMGD}` runs SMGD
from {POINTS} random starts, both on seed 0 with the learning rate of {", ".join(map(str, _RATES))} that has the largest
hypervolume; the tuning is not charged. "on front" is the share of points within 1e-3 of the front, "distance" the
largest distance of a nondominated point. The hypervolume has the reference point with all entries {TOP} and is divided
by that of the best {POINTS} points of the front, found by exchanging one after the other until nothing improves.
Targets: all points within 1e-3, hypervolume at least 0.99. The rules were chosen on these problems, seeds 0, 1
and 3.

Fairness: cross-entropy against the DEO surrogate of COSMOS, an MLP with hidden layers of 60 and 25, 70/10/20 split, up
to {DATA_POINTS} points, 1000 steps for an end, batches of 256. Images: LeNet with two heads on 9,000 of 60,000 pairs,
300 steps for an end, nine epochs, which is far less than in the published runs; Adam at {_IMAGE_RATES[0]} only.
Hypervolume on test data at (2, 2), mean and standard deviation over seeds; EPO and GMOOAR as published. Their number of
points and their early stopping differ from ours. The rules and the batch were chosen on Adult, seeds 0 and 3, credit,
seeds 0, 1 and 3, and Fashion+MNIST; test figures were seen. Adam minimises {DATA_POINTS} weighted sums with the same
steps each on seed 0, with the rate of {", ".join(map(str, _DATA_RATES))} that has the largest validation hypervolume.
The surrogate is the absolute value of a mean, not a mean over samples, so the batches of any method are biased. "times
one point": passes divided by those of `fit(preference=)` with the same steps; target: at most 4.
"""
COLUMNS = [
    *("problem", "method", "seeds", "points", "on front", "distance", "hypervolume", "published"),
    *("passes", "CPU seconds"),
]


def known_rows(folder: Path, problems: Sequence[str], seeds: int, steps: int, rates: Sequence[float]) -> list[Any]:
    """Return a row per method and known front; runs that exist in the folder are not repeated."""
    table = []
    for problem in problems:
        fixed = {"problem": problem, "steps": steps}
        ours = [{**fixed, "method": OURS, "lr": None, "seed": seed} for seed in range(seeds)]
        table.append(_known_row(problem, OURS, fill(folder, known, ours, _VERSION, workers=1)))
        for method in (ADAM, SMGD) if rates else ():
            cells = [{**fixed, "method": method, "lr": lr, "seed": 0} for lr in rates]
            best = max(fill(folder, known, cells, _RIVALS, workers=1), key=lambda one: volume(one["losses"]))
            table.append(_known_row(problem, method, [best]))
    return table


def _known_row(problem: str, method: str, found: Sequence[Found]) -> list[object]:
    each = [quality(problem, one) for one in found]

    def cell(name: str, text: str, worst: Callable[[list[float]], float]) -> str:
        values = [one[name] for one in each]
        spread = f" ({format(worst(values), text)})" if len(values) > 1 else ""
        return format(statistics.fmean(values), text) + spread

    cells = [cell("points", ".0f", min), cell("on_front", ".0%", min), cell("distance", ".1e", max)]
    cost = [f"{statistics.fmean(one['passes'] for one in found):.0f}", f"{sum(one['seconds'] for one in found):.0f}"]
    return [TRACED[problem].title, method, len(found), *cells, cell("hypervolume", ".4f", min), "", *cost]


def data_rows(folder: Path, sets: Sequence[str], seeds: int, rates: Sequence[float]) -> list[Any]:
    """Return a row per data set and method; the rate of the sweep has the best validation hypervolume."""
    table: list[Any] = []
    for data in sets:
        fixed = {"data": data, **_SETTINGS[data]}
        if data in IMAGES:
            seeds, rates = min(seeds, _IMAGE_SEEDS), rates and _IMAGE_RATES
        ours = fill(folder, data_front, [{**fixed, "seed": seed} for seed in range(seeds)], _VERSION, workers=1)
        table.append([data, OURS, *_data_cells(ours, _PUBLISHED[data])])
        if rates:
            sweeps = fill(folder, data_sweep, [{**fixed, "seed": 0, "lr": lr} for lr in rates], _RIVALS, workers=1)
            best = max(sweeps, key=lambda one: one["validation"])
            table.append([data, f"Adam, {DATA_POINTS} weights", *_data_cells([best], "")])
    return table


def _data_cells(found: Sequence[Found], published: str) -> list[object]:
    mean = {name: statistics.fmean(one[name] for one in found) for name in ("points", "test", "seconds")}
    passes = statistics.fmean(one["passes"] / one["n"] for one in found)
    spread = f" ± {statistics.stdev(one['test'] for one in found):.3f}" if len(found) > 1 else ""
    ratio = ""
    if "one_point" in found[0]:
        ratios = [one["passes"] / one["one_point"] for one in found]
        ratio = f", {statistics.fmean(ratios):.2f} times one point, at most {max(ratios):.2f}"
    cells = [len(found), f"{mean['points']:.0f}", "", "", f"{mean['test']:.3f}{spread}", published]
    return [*cells, f"{passes:.0f} n{ratio}", f"{mean['seconds']:.0f}"]


def rows(quick: bool = False) -> list[Any]:
    """Return the table; cells that are in the folder are not run again."""
    if quick:
        with tempfile.TemporaryDirectory() as folder:
            return known_rows(Path(folder), ["two-bowls"], 1, 20, [0.03])
    table = known_rows(_FOLDER, list(TRACED), _SEEDS, _STEPS, _RATES)
    return [*table, *data_rows(_FOLDER, list(_SETTINGS), _SEEDS, _DATA_RATES)]
