"""The runs of the scoreboard: choose learning rates on validation data, then train every rival at equal budgets."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from stimulus_moo import delta_m
from stimulus_moo.lab.board.problem import TUNING_SEED, BoardProblem, Metric
from stimulus_moo.lab.board.rivals import ADAM, MEAN, SINGLE, Rival
from stimulus_moo.lab.board.store import Cell, Found, Store

_EQUAL = 0.1  # budgets that differ by less are taken as the same

PASSES, SECONDS = "passes", "seconds"


@dataclass
class Runs:
    """The runs of one rival on one problem: one per seed, for each kind of budget."""

    rates: list[float | None]  # the chosen learning rate of every seed
    passes: list[Found]
    seconds: list[Found] = field(default_factory=list)


@dataclass
class Table:
    """All runs of one problem."""

    problem: BoardProblem
    baseline: list[list[float | None]]  # single-task metrics of every seed
    baseline_seconds: float  # CPU seconds of all single-task models together, mean over the seeds
    rivals: dict[str, Runs]
    seconds: float  # the budget in seconds


class Board:
    """The runs of one problem after the other.

    Args:
        store: the cells.
        rivals: rows of the table of rivals.
        quick: one seed, one learning rate, a small budget, and no budget of seconds.
        data: data folder, or None.
    """

    def __init__(self, store: Store, rivals: Sequence[Rival], *, quick: bool = False, data: str | None = None) -> None:
        self.store, self.rivals, self.quick, self.data = store, rivals, quick, data
        self.chosen: list[Rival] = []  # the rivals on the problem at hand

    def run(self, row: BoardProblem) -> Table:
        """Run what is missing of a problem."""
        self.chosen = [rival for rival in self.rivals if not rival.full or self._affordable(row)]
        baseline, validation, spent = self._single_task(row)
        budget = self._budget(row)
        rates = self._rates(row, validation)
        self._fill(cell for name in rates for cell in self._seed_cells(row, name, rates[name], budget))
        runs = {name: Runs(own, self._fill(self._seed_cells(row, name, own, budget))) for name, own in rates.items()}
        limit = statistics.median(found["seconds"] for found in runs[MEAN].passes)
        if not self.quick:
            within = {name: passes_within(limit, own.passes, budget) for name, own in runs.items()}
            self._fill(cell for name in runs for cell in self._seed_cells(row, name, rates[name], within[name]))
            for name, own in runs.items():
                own.seconds = self._fill(self._seed_cells(row, name, own.rates, within[name]))
        return Table(row, baseline, spent, runs, limit)

    def _single_task(self, row: BoardProblem) -> tuple[list[list[float | None]], dict[int, list[float]], float]:
        """Return the single-task metrics: of the test by seed, of the validation by tuning seed; and the seconds."""
        budget, tasks = self._budget(row, single=True), range(len(row.tasks))
        tuning = sorted({_tuning_seed(row, seed) for seed in self._seeds(row)})
        if self.quick:
            found = self._fill(self._cell(row, SINGLE, ADAM[1], 0, budget, t) for t in tasks)
            only = [_value(found[m.task]["test"], k) for k, m in enumerate(row.metrics)]
            return [only], {}, sum(one["seconds"] for one in found)
        self._fill(self._cell(row, SINGLE, lr, seed, budget, t) for t in tasks for seed in tuning for lr in ADAM)
        best = {(t, seed): self._search_single(row, t, seed, budget) for t in tasks for seed in tuning}
        found = self._fill(
            self._cell(row, SINGLE, best[t, _tuning_seed(row, seed)][0], seed, budget, t)
            for seed in self._seeds(row)
            for t in tasks
        )
        by_seed = [found[k : k + len(tasks)] for k in range(0, len(found), len(tasks))]
        test = [[_value(models[m.task]["test"], k) for k, m in enumerate(row.metrics)] for models in by_seed]
        validation = {seed: [best[m.task, seed][1][k] for k, m in enumerate(row.metrics)] for seed in tuning}
        return test, validation, statistics.fmean(sum(one["seconds"] for one in models) for models in by_seed)

    def _search_single(self, row: BoardProblem, task: int, seed: int, budget: int) -> tuple[float, list[float]]:
        """Choose the learning rate of a single-task model by the first metric of its task."""
        k = next(k for k, metric in enumerate(row.metrics) if metric.task == task)
        return self._search(row, SINGLE, ADAM, seed, budget, lambda found: _worth(row.metrics[k], found, k), task)

    def _rates(self, row: BoardProblem, baseline: dict[int, list[float]]) -> dict[str, list[float | None]]:
        """Return the learning rate of every rival and seed: the lowest Delta m on validation data."""
        seeds, budget = self._seeds(row), self._budget(row)
        if self.quick:
            return {rival.name: [rival.rates[1] if rival.rates else None] for rival in self.chosen}
        self._fill(
            self._cell(row, rival.name, lr, seed, budget)
            for rival in self.chosen
            for lr in rival.rates
            for seed in baseline
        )
        found: dict[str, list[float | None]] = {}
        for rival in self.chosen:
            chosen = {seed: self._rate(row, rival, seed, baseline[seed]) for seed in baseline}
            found[rival.name] = [chosen[_tuning_seed(row, seed)] for seed in seeds]
        return found

    def _rate(self, row: BoardProblem, rival: Rival, seed: int, baseline: list[float]) -> float | None:
        if not rival.rates:
            return None

        def worth(found: Found) -> float:
            return -score(row.metrics, found["validation"], baseline)

        return self._search(row, rival.name, rival.rates, seed, self._budget(row), worth)[0]

    def _search(
        self,
        row: BoardProblem,
        name: str,
        grid: tuple[float, ...],
        seed: int,
        budget: int,
        worth: Callable[[Found], float],
        task: int | None = None,
    ) -> tuple[float, list[float]]:
        """Return the best learning rate of a grid, extended once where the best is at an end, and its validation."""

        def tried(rates: Sequence[float]) -> dict[float, Found]:
            cells = [self._cell(row, name, lr, seed, budget, task) for lr in rates]
            return dict(zip(rates, self._fill(cells), strict=True))

        found = tried(grid)
        best = max(found, key=lambda lr: worth(found[lr]))
        if best in (grid[0], grid[-1]):
            found |= tried([_round(best * (0.3 if best == grid[0] else 10 / 3), 1)])
            best = max(found, key=lambda lr: worth(found[lr]))
        return best, found[best]["validation"] or [math.nan] * len(row.metrics)

    def _fill(self, cells: Iterable[Cell]) -> list[Found]:
        return self.store.fill(list(cells), self.data)

    def _seed_cells(self, row: BoardProblem, name: str, rates: Sequence[float | None], budget: int) -> list[Cell]:
        return [self._cell(row, name, lr, seed, budget) for lr, seed in zip(rates, self._seeds(row), strict=True)]

    def _cell(
        self, row: BoardProblem, name: str, lr: float | None, seed: int, budget: int, task: int | None = None
    ) -> Cell:
        return {"problem": row.name, "rival": name, "task": task, "lr": lr, "seed": seed, "passes": budget}

    def _affordable(self, row: BoardProblem) -> bool:
        """Return whether the budget is enough for the gradients of all losses on all data, and as much again."""
        return 2 * row.samples * len(row.tasks) <= self._budget(row)

    def _seeds(self, row: BoardProblem) -> range:
        return range(1 if self.quick else row.seeds)

    def _budget(self, row: BoardProblem, *, single: bool = False) -> int:
        whole = row.single or row.passes if single else row.passes
        return max(row.batch, whole * row.quick // row.passes) if self.quick else whole


def passes_within(limit: float, runs: Sequence[Found], passes: int) -> int:
    """Return the passes that a rival makes in ``limit`` CPU seconds, from the speed of its runs with ``passes``.

    Rounded to two digits; ``passes`` itself if the difference is below 10%, so that those runs serve for both.

    >>> runs = [{"passes": 1000, "seconds": 2.0}]
    >>> passes_within(10.0, runs, 1000), passes_within(2.1, runs, 1000)
    (5000, 1000)
    """
    speed = statistics.median(found["passes"] / found["seconds"] for found in runs)
    within = _round(limit * speed, 2)  # 0 if the runs have failed
    return passes if abs(within - passes) <= _EQUAL * passes or not within else round(within)


def score(metrics: Sequence[Metric], values: Sequence[float] | None, baseline: Sequence[float | None]) -> float:
    """Return Delta m in percent, lower is better; infinite for a run that diverged."""
    if values is None or any(value is None for value in baseline):
        return float("inf")
    higher = [metric.higher for metric in metrics]
    scale = [None if metric.relative else 1.0 for metric in metrics]
    return delta_m(values, [value for value in baseline if value is not None], higher=higher, scale=scale)


def _worth(metric: Metric, found: Found, k: int) -> float:
    values = found["validation"]
    if values is None:
        return -float("inf")
    return float(values[k]) if metric.higher else -float(values[k])


def _value(values: Sequence[float] | None, k: int) -> float | None:
    return None if values is None else values[k]


def _tuning_seed(row: BoardProblem, seed: int) -> int:
    return TUNING_SEED + (seed if row.folds else 0)


def _round(number: float, digits: int) -> float:
    return float(f"{number:.{digits}g}")
