"""The judge of ``fit(model, losses, data)``: automatic settings against Adam with the best learning rate of a grid."""

from __future__ import annotations

import math
import os
import statistics
import tempfile
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from time import process_time
from typing import Any

import torch

from benchmarks.cells import Found, fill
from benchmarks.problems import CASES, Case
from stimulus_moo import NonFiniteError, Result, fit, measure
from stimulus_moo.lab.board.tabular import tox21_encoding
from stimulus_moo.lab.problem import Problem
from stimulus_moo.lab.runs.core_checksum import core_checksum

_TUNING_SEED = 100
_GRID = (0.001, 0.003, 0.01, 0.03)
_EVALUATION_BATCH = 8192
_FAILED = 1e9  # loss and stationarity after a run has failed
_FOLDER = Path("runs/benchmarks/hands-free")

AUTO, MEAN, RELATIVE, UPGRAD = "auto", "Adam, mean", "Adam, relative", "Adam, UPGrad"
#: methods whose learning rate is tuned
RIVALS = (MEAN, RELATIVE, *([UPGRAD] if find_spec("torchjd") else []))

TITLE = "Hands-free: fit(model, losses, data), against Adam with the best learning rate of a grid"
TEXT = f"""\
`auto` is `fit(model, losses, data)` with a batch size and a budget, and nothing else. Budgets are in passes, the
per-sample derivatives of one scalar: a gradient of a weighted sum of the losses takes one per sample, the gradients of
all S losses take S. The table shows the mean training loss over the tasks, on all samples, at 1/4, 1/2 and all of the
budget of one run; the largest loss of a task at the end, divided by that of `{MEAN}`; the Pareto stationarity at the
end; the passes spent, divided by the budget, since the last step may exceed it; and the CPU seconds of the training,
on one thread. All are means over 3 to 5 seeds.

The rivals are Adam on three directions. `{MEAN}` minimises the mean of the losses, which is the quantity compared.
`{RELATIVE}` minimises the mean of the losses divided by their values at the start, which are measured on all samples at
no charge. `{UPGRAD}` uses the weights of TorchJD's UPGrad, from the gradients of all losses at every step. They have no
safeguard, no variance reduction, and torch's default betas, where `auto` chooses beta2 itself. Their learning rate
falls linearly to zero over the last half of the budget, as that of `auto` does. Seeds determine the initialization and
the batches, which are the same for all methods. Each rival has the learning rate of {", ".join(map(str, _GRID))} with
the lowest mean loss at the end on one further seed; if that is at an end of the grid, the grid is extended there once.
The tuning is not charged.

In the problems with a scaled loss, that loss is multiplied by 0.01 in training; all figures are of the losses without
the factor. No rule was chosen on the problems marked "held out". The inputs of Tox21 are {tox21_encoding()}.

Targets (column bar): the mean loss of `auto` is at most 1.10 times that of `{MEAN}` at the end, and at most 1.25 times
at 1/4 and 1/2. With a scaled loss, its mean loss at the end is at most half that of `{MEAN}` and at most 1.10 times
that of `{RELATIVE}`. On ridge regression, the logistic problems, fairness and river flow, its stationarity is at most a
tenth of that of `{MEAN}`. The last rows show the geometric mean, over the problems, of the mean loss of `auto` at the
end divided by that of `{MEAN}`, and on how many problems the largest loss is not above that of `{MEAN}`.
"""
COLUMNS = [
    *("problem", "method", "learning rate", "loss 1/4", "loss 1/2", "loss", "largest loss", "stationarity"),
    *("spent", "CPU seconds", "bar", "met"),
]


def train(problem: str, method: str, lr: float | None, seed: int, passes: int) -> Found:
    """Train from one seed.

    Args:
        problem: a name of ``CASES``.
        method: ``AUTO`` or one of ``RIVALS``.
        lr: learning rate of a rival, None for ``AUTO``.
        seed: of the initialization and the batches.
        passes: the budget.

    Returns:
        Losses of all tasks and stationarity at every budget, very large after a run has failed, and the share
        of the passes that was spent and the CPU seconds of the training.
    """
    case = CASES[problem]
    made = case.make(seed)
    budgets = [passes // 4, passes // 2, passes]
    n = len(made.data[0])
    batches = [tuple(column[k : k + _EVALUATION_BATCH] for column in made.data) for k in range(0, n, _EVALUATION_BATCH)]
    found: list[tuple[list[float], float]] = []
    looking = 0.0  # CPU seconds, not part of the training

    def look() -> None:
        nonlocal looking
        start = process_time()
        measured = measure(made.model, made.losses, batches)
        found.append(([_number(loss) for loss in measured.losses], _number(measured.stationarity)))
        looking += process_time() - start

    def look_when_due(progress: Any) -> None:
        while len(found) < len(budgets) - 1 and progress.record["passes"] >= budgets[len(found)]:
            look()

    options = {} if lr is None else _rival(method, lr, case, made, batches, passes)
    options["callbacks"] = [look_when_due, *options.get("callbacks", ())]
    result: Result | None = None
    start = process_time()
    with suppress(NonFiniteError):
        result = fit(
            made.model,
            case.scaled(made.losses),
            made.data,
            batch_size=case.batch,
            passes=passes,
            seed=seed,
            evaluation=[tuple(column[:1] for column in made.data)],  # measured here instead
            progress=False,
            **options,
        )
        look()  # after the safeguard's decision about the last step
    found += [([_FAILED] * len(made.tasks), _FAILED)] * (len(budgets) - len(found))
    return {
        "losses": [losses for losses, _ in found],
        "stationarity": [stationarity for _, stationarity in found],
        "spent": result.passes / passes if result else 0.0,
        "seconds": process_time() - start - looking,
    }


def _rival(method: str, lr: float, case: Case, made: Problem, batches: Iterable[Any], budget: int) -> dict[str, Any]:
    """Return the options of ``fit`` for a rival."""

    def fall(progress: Any) -> None:
        """Set the learning rate of the next step."""
        done = min(progress.record["passes"] / budget, 1.0)
        for group in progress.optimizer.param_groups:
            group["lr"] = lr * min(1.0, 2.0 * (1.0 - done))

    options: dict[str, Any] = {"method": "scalarisation-adam", "lr": lr, "guard": False, "callbacks": [fall]}
    if method == RELATIVE:
        start = measure(made.model, case.scaled(made.losses), batches).losses
        options["weights"] = [1.0 / (len(start) * loss) for loss in start]
    elif method == UPGRAD:
        options["weighting"] = import_module("torchjd.aggregation").UPGradWeighting()
    return options


def _number(value: float) -> float:
    return min(value, _FAILED) if math.isfinite(value) else _FAILED


def _version(method: str, problem: str) -> str:
    """Return what the cells depend on; runs of ``AUTO`` are repeated when the library has changed."""
    version = f"3, torch {torch.__version__}"
    if problem == "tox21":
        version = f"{version}, {tox21_encoding()}"
    if method != AUTO:
        return version
    return f"{version}, {core_checksum()}"


@dataclass(frozen=True)
class Outcome:
    """Means over the seeds of one method on one problem."""

    lr: float | None
    losses: list[float]  # mean over the tasks, at every budget
    largest: float  # at the end
    stationarity: float  # at the end
    spent: float
    seconds: float

    @classmethod
    def of(cls, lr: float | None, runs: Sequence[Found]) -> Outcome:
        """Return the means over runs."""
        budgets = range(len(runs[0]["losses"]))
        return cls(
            lr,
            [statistics.fmean(_mean_loss(run, k) for run in runs) for k in budgets],
            statistics.fmean(max(run["losses"][-1]) for run in runs),
            statistics.fmean(run["stationarity"][-1] for run in runs),
            statistics.fmean(run["spent"] for run in runs),
            statistics.fmean(run["seconds"] for run in runs),
        )

    def cells(self, first: Outcome) -> list[object]:
        """Return the cells of the table from the learning rate to the seconds."""
        return [
            "" if self.lr is None else f"{self.lr:g}",
            *map(_show, self.losses),
            f"{self.largest / first.largest:.2f}",
            f"{self.stationarity:.1e}",
            f"{self.spent:.2f}",
            f"{self.seconds:.1f}",
        ]


def _mean_loss(run: Found, budget: int) -> float:
    return statistics.fmean(run["losses"][budget])


def _show(loss: float) -> str:
    return "diverged" if loss >= 0.1 * _FAILED else f"{loss:.4g}"


class Comparison:
    """The runs of all methods on one problem."""

    def __init__(self, problem: str, folder: Path = _FOLDER, *, quick: bool = False) -> None:
        self.problem, self.folder, self.quick = problem, folder, quick
        self.case = CASES[problem]
        self.seeds = range(1 if quick else self.case.seeds)
        self.outcomes: dict[str, Outcome] = {}

    def run(self) -> None:
        """Run what is missing in the folder; two runs at a time on two cores."""
        self.outcomes[AUTO] = Outcome.of(None, self._runs([(AUTO, None, seed) for seed in self.seeds]))
        rates, count = self._tuned_rates(), len(self.seeds)
        found = self._runs([(method, lr, seed) for method, lr in rates.items() for seed in self.seeds])
        for k, (method, lr) in enumerate(rates.items()):
            self.outcomes[method] = Outcome.of(lr, found[k * count : (k + 1) * count])

    def _runs(self, runs: Sequence[tuple[str, float | None, int]]) -> list[Found]:
        """Return the results of runs, each a method, a learning rate and a seed; ``AUTO`` alone or rivals alone."""
        passes = self.case.passes // (100 if self.quick else 1)
        cells = [
            {"problem": self.problem, "method": method, "lr": lr, "seed": seed, "passes": passes}
            for method, lr, seed in runs
        ]
        version = f"{_version(runs[0][0], self.problem)}, batch {self.case.batch}, scales {self.case.scales}"
        return fill(self.folder, train, cells, version, workers=1 if self.quick else None)

    def _tuned_rates(self) -> dict[str, float]:
        """Return the best learning rate of every rival."""
        grids: dict[str, tuple[float, ...]] = dict.fromkeys(RIVALS, _GRID[1:3] if self.quick else _GRID)
        best = self._best_rates(grids)
        if self.quick:
            return best
        return self._best_rates({method: _extended(grid, best[method]) for method, grid in grids.items()})

    def _best_rates(self, grids: dict[str, tuple[float, ...]]) -> dict[str, float]:
        runs = [(method, lr, _TUNING_SEED) for method, grid in grids.items() for lr in grid]
        losses = {
            (method, lr): _mean_loss(run, -1) for (method, lr, _), run in zip(runs, self._runs(runs), strict=True)
        }
        return {method: min(grid, key=lambda lr: losses[method, lr]) for method, grid in grids.items()}

    @property
    def ratio(self) -> float:
        """Mean loss of ``AUTO`` at the end, divided by that of the first rival."""
        return self.outcomes[AUTO].losses[-1] / self.outcomes[MEAN].losses[-1]

    @property
    def largest_is_fine(self) -> bool:
        """Whether the largest loss of ``AUTO`` is not above that of the first rival."""
        return self.outcomes[AUTO].largest <= self.outcomes[MEAN].largest

    def rows(self) -> list[list[object]]:
        """Return the rows of the problem."""
        title = f"{self.case.title}, {self.case.passes / 1000:g}k" + (" (held out)" if self.case.held_out else "")
        bar, met = verdict(self.case, self.outcomes)
        return [
            [title, method, *outcome.cells(self.outcomes[MEAN]), *((bar, met) if method == AUTO else ("", ""))]
            for method, outcome in self.outcomes.items()
        ]


def verdict(case: Case, outcomes: dict[str, Outcome]) -> tuple[str, str]:
    """Return the targets of a problem, and whether they are met."""
    auto, mean, relative = (outcomes[method] for method in (AUTO, MEAN, RELATIVE))
    first, second, last = (own / other for own, other in zip(auto.losses, mean.losses, strict=True))
    if case.scales is None:
        bars = [(f"1.10 of {MEAN}, before the end 1.25", last <= 1.10 and max(first, second) <= 1.25)]
        figures = [f"{first:.2f}, {second:.2f}, {last:.2f} of {MEAN}"]
    else:
        against = auto.losses[-1] / relative.losses[-1]
        bars = [(f"0.5 of {MEAN}, 1.10 of {RELATIVE}", last <= 0.5 and against <= 1.10)]
        figures = [f"{last:.2g} of {MEAN}, {against:.2f} of {RELATIVE}"]
    if case.converges:
        share = auto.stationarity / mean.stationarity
        bars.append(("a tenth of its stationarity", share <= 0.1))
        figures.append(f"{share:.2g} of its stationarity")
    good = all(reached for _, reached in bars)
    return "; ".join(text for text, _ in bars), f"{'met' if good else 'missed'}: {'; '.join(figures)}"


def summary(comparisons: Sequence[Comparison]) -> list[list[object]]:
    """Return the last rows: over all problems, and over those without a scaled loss."""
    groups: list[tuple[str, Callable[[Case], bool]]] = [
        ("all problems", lambda case: True),
        ("without scaled losses", lambda case: case.scales is None),
        ("held out, without scaled losses", lambda case: case.held_out and case.scales is None),
    ]
    table: list[list[object]] = []
    for title, belongs in groups:
        chosen = [comparison for comparison in comparisons if belongs(comparison.case)]
        if chosen:
            ratio = statistics.geometric_mean(comparison.ratio for comparison in chosen)
            fine = f"not above on {sum(comparison.largest_is_fine for comparison in chosen)} of {len(chosen)}"
            label = f"{title} ({len(chosen)})"
            table.append([label, f"{AUTO} / {MEAN}", "", "", "", f"{ratio:.3f}", fine, *[""] * (len(COLUMNS) - 7)])
    return table


def _extended(grid: tuple[float, ...], best: float) -> tuple[float, ...]:
    """Return the grid with one more learning rate if the best is at an end."""
    if best == grid[0]:
        return (float(f"{0.3 * best:.1g}"), *grid)
    return (*grid, float(f"{10 / 3 * best:.1g}")) if best == grid[-1] else grid


def chosen_problems() -> list[str]:
    """Return the problems that the environment variable HANDS_FREE names, separated by commas; default all."""
    names = [name.strip() for name in os.environ.get("HANDS_FREE", "").split(",") if name.strip()]
    unknown = sorted(set(names) - set(CASES))
    if unknown:
        raise ValueError(f"HANDS_FREE must name some of {', '.join(CASES)}, found {unknown[0]!r}")
    return names or list(CASES)


def rows(quick: bool = False) -> list[list[object]]:
    if quick:
        with tempfile.TemporaryDirectory() as folder:
            return _table([Comparison("fairness", Path(folder), quick=True)])
    return _table([Comparison(problem) for problem in chosen_problems()])


def _table(comparisons: Sequence[Comparison]) -> list[list[object]]:
    for comparison in comparisons:
        comparison.run()
    return [*(row for comparison in comparisons for row in comparison.rows()), *summary(comparisons)]
