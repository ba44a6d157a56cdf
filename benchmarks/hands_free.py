"""Training with automatic settings, compared with the best step size of a grid."""

from __future__ import annotations

import math
import statistics
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from benchmarks import problems
from benchmarks.cells import Found, fill
from benchmarks.problems import CASES, Case
from stimulus_moo import NonFiniteError, measure

_SEEDS, _TUNING_SEEDS = (0, 1, 2, 3, 4), (100, 101)
_FOLDER = Path("runs/benchmarks/hands-free")
#: tuned methods: step sizes from a grid, no safeguard
TUNED = ("stimulus", "stimulus-m", "smgd", "scalarisation", "scalarisation-adam")
#: the paper's own methods, also run with lr="auto"
RECURSIVE = ("stimulus", "stimulus-m")

TITLE = "Hands-free: no step size given, against the best of a grid"
TEXT = f"""\
Mean training loss over the tasks, on all samples, at three budgets of gradient evaluations, and the Pareto stationarity
at the last two; means over {len(_SEEDS)} seeds. Tuned methods run without the safeguard and with constant step sizes.
For every budget the step size is the one of 0.001, 0.003, ..., 3 (extended if the best is at an end of the grid) with
the lowest mean loss over {len(_TUNING_SEEDS)} further seeds. Hands-free is `fit(method="auto", lr="auto")`, which is
`Filtered` with heavy ball. "no step size" is `lr="auto"` with the paper's own methods. In both, the learning rate
decays to zero over the last fifth before the last budget. The row "decayed" is SMGD with its best constant step size
for the last budget and the same decay. "scalarisation" is SGD, "scalarisation-adam" is Adam, both on the mean of the
losses. No rule was chosen on the problems marked "held out". Targets (column bar): the loss of hands-free is at most
1.02 times that of the better of tuned STIMULUS and STIMULUS-M at each budget; on river flow, the logistic and the
held-out problems it is at most 1.1 times that of tuned SMGD, with a stationarity of at most a tenth of SMGD's at the
last budget; on MultiMNIST it is at most 1.5 times that of tuned SMGD.
"""
COLUMNS = [
    *("problem", "method", "step sizes", "loss 1", "loss 2", "loss 3", "stationarity 2", "stationarity 3"),
    *("bar", "met"),
]


def train(
    problem: str, method: str, lr: float | str, guard: bool, seed: int, shrink: int = 1, decay: bool = False
) -> Found:
    """Train from one seed; return mean loss and stationarity at every budget, infinite after a run has failed.

    ``decay`` is for methods that evaluate one point: the step size decays to zero over the last fifth of the run.
    """
    case = CASES[problem]
    made = case.make(seed)
    n = len(made.data[0])
    budgets = [budget // shrink for budget in case.budgets]
    batches = [tuple(column[k : k + 1024] for column in made.data) for k in range(0, n, 1024)]
    found: list[tuple[float, float]] = []
    steps = math.ceil(budgets[-1] / case.batch)

    def ease(optimizer: Optimizer) -> LambdaLR:
        return LambdaLR(optimizer, lambda step: min(1.0, 5.0 * (1.0 - step / steps)))

    def look(progress: Any) -> None:
        while len(found) < len(budgets) and progress.record["gradients"] >= budgets[len(found)]:
            measured = measure(made.model, made.losses, batches)
            found.append((statistics.fmean(measured.losses), measured.stationarity))

    with suppress(NonFiniteError):
        asked = {"method": method, "lr": lr, "guard": guard, "scheduler": ease if decay else None}
        problems.train(case, made, seed=seed, budget=budgets[-1], evaluation=batches[:1], callbacks=[look], **asked)
    found += [(1e9, 1e9)] * (len(budgets) - len(found))
    return {"losses": [_number(loss) for loss, _ in found], "stationarity": [_number(s) for _, s in found]}


def _number(value: float) -> float:
    return value if math.isfinite(value) and value < 1e9 else 1e9


class Outcome:
    """Means over the seeds at the three budgets, from the runs that belong to each budget."""

    def __init__(self, rates: list[Any], runs: list[list[Found]]) -> None:
        self.rates = rates
        self.losses = [statistics.fmean(run["losses"][k] for run in found) for k, found in enumerate(runs)]
        self.stationarity = [statistics.fmean(run["stationarity"][k] for run in found) for k, found in enumerate(runs)]

    def cells(self) -> list[object]:
        """Return step sizes, losses and stationarities for the table."""
        rates = ", ".join(rate if isinstance(rate, str) else f"{rate:g}" for rate in self.rates)
        return [rates, *map(_show, self.losses), *(f"{value:.1e}" for value in self.stationarity[1:])]


class Comparison:
    """The cells of one problem."""

    def __init__(self, problem: str, folder: Path, *, quick: bool) -> None:
        self.problem, self.folder, self.quick = problem, folder, quick
        self.case: Case = CASES[problem]
        self.shrink = 100 if quick else 1
        self.seeds = _SEEDS[:1] if quick else _SEEDS
        self.tuning_seeds = _TUNING_SEEDS[:1] if quick else _TUNING_SEEDS

    def _runs(
        self, method: str, rates: list[float] | list[str], seeds: tuple[int, ...], *, guard: bool, **more: bool
    ) -> list[Found]:
        cells = [
            {
                "problem": self.problem,
                "method": method,
                "lr": rate,
                "guard": guard,
                "seed": seed,
                "shrink": self.shrink,
                **more,
            }
            for rate in rates
            for seed in seeds
        ]
        return fill(self.folder, train, cells, f"1, torch {torch.__version__}", workers=1 if self.quick else None)

    def _tuned_rates(self, method: str) -> list[float]:
        """Return the best step size at every budget."""
        grid = list(self.case.grid[3:5] if self.quick else self.case.grid)
        for _ in range(4):
            found = self._runs(method, grid, self.tuning_seeds, guard=False)
            count = len(self.tuning_seeds)
            means = [
                [statistics.fmean(cell["losses"][k] for cell in found[i * count : (i + 1) * count]) for k in range(3)]
                for i in range(len(grid))
            ]
            best = [min(range(len(grid)), key=lambda i: means[i][k]) for k in range(3)]
            wider = [0.3 * grid[0]] * (0 in best) + [3.0 * grid[-1]] * (len(grid) - 1 in best)
            if self.quick or not wider:
                break
            grid = sorted({*grid, *(float(f"{rate:.1g}") for rate in wider)})
        return [grid[i] for i in best]

    def tuned(self, method: str) -> Outcome:
        """Return the results of a method with its best step size for each budget."""
        rates = self._tuned_rates(method)
        found = {rate: self._runs(method, [rate], self.seeds, guard=False) for rate in set(rates)}
        return Outcome(rates, [found[rate] for rate in rates])

    def decayed(self, rate: float) -> Outcome:
        """Return the results of SMGD with a step size that decays to zero at the end."""
        return Outcome([rate], [self._runs("smgd", [rate], self.seeds, guard=False, decay=True)] * 3)

    def free(self, method: str) -> Outcome:
        """Return the results of a method with ``lr="auto"``."""
        return Outcome(["auto"], [self._runs(method, ["auto"], self.seeds, guard=True)] * 3)

    def rows(self) -> list[list[object]]:
        """Return the rows of the problem."""
        free, tuned = self.free("auto"), {method: self.tuned(method) for method in TUNED}
        budgets = "/".join(f"{budget / 1000:g}k" for budget in self.case.budgets)
        title = f"{self.case.title}, {budgets}" + (" (held out)" if self.case.held_out else "")
        return [
            [title, "hands-free", *free.cells(), *self._verdict(free, tuned)],
            *([title, f"{method}, tuned", *outcome.cells(), "", ""] for method, outcome in tuned.items()),
            *([title, f"{method}, no step size", *self.free(method).cells(), "", ""] for method in RECURSIVE),
            [title, "smgd, tuned, decayed", *self.decayed(tuned["smgd"].rates[-1]).cells(), "", ""],
        ]

    def _verdict(self, free: Outcome, tuned: dict[str, Outcome]) -> tuple[str, str]:
        """Return the targets, and whether they are met."""
        smgd = tuned["smgd"]
        family = [min(pair) for pair in zip(tuned["stimulus"].losses, tuned["stimulus-m"].losses, strict=True)]
        against = max(loss / other for loss, other in zip(free.losses, family, strict=True))
        others = max(loss / other for loss, other in zip(free.losses, smgd.losses, strict=True))
        bars, good = ["1.02 of tuned STIMULUS"], against <= 1.02
        figures = [f"{against:.2f} of tuned STIMULUS", f"{others:.2f} of tuned SMGD"]
        if self.problem == "multimnist":
            bars.append("1.5 of tuned SMGD")
            good &= others <= 1.5
        elif self.problem != "digits":
            bars.append("1.1 of tuned SMGD, a tenth of its stationarity")
            share = free.stationarity[-1] / smgd.stationarity[-1]
            good &= others <= 1.1 and share <= 0.1
            figures.append(f"{share:.2g} of its stationarity")
        return "; ".join(bars), f"{'met' if good else 'missed'}: {', '.join(figures)}"


def _show(loss: float) -> str:
    return "diverged" if loss >= 1e8 else f"{loss:.4g}"


def rows(quick: bool = False) -> list[list[object]]:
    if quick:
        with tempfile.TemporaryDirectory() as folder:
            return Comparison("fairness", Path(folder), quick=True).rows()
    return [row for problem in CASES for row in Comparison(problem, _FOLDER, quick=False).rows()]
