"""Quality of kept weights at equal passes: SMGD and STIMULUS, with weights at every step and when due."""

from __future__ import annotations

import math
import statistics
import tempfile
from contextlib import suppress
from pathlib import Path
from time import process_time
from typing import Any

import torch
from torch import Tensor

from benchmarks.cells import Found, fill
from benchmarks.problems import CASES, Case
from stimulus_moo import Averaged, MinNorm, NonFiniteError, Smoothed, fit
from stimulus_moo.lab.problem import Problem

_SEEDS, _TUNING_SEEDS = (0, 1, 2, 3, 4), (100, 101, 102)
_FOLDER = Path("runs/benchmarks/amortised")

TITLE = "Quality of kept weights, at equal passes"
TEXT = f"""\
Mean training loss over the tasks and Pareto stationarity on all samples after a budget of passes (per-sample
derivatives of one scalar: S where all rows are computed, 1 where lambda . F is); means over {len(_SEEDS)} seeds. "every
step" is `reweigh=1`. "when due" is `reweigh="auto"`, with `Averaged(MinNorm())` for SMGD, whose Gramians are those of
mini-batches, and `Smoothed(MinNorm(), 0.5)` for STIMULUS, whose weights would jump from anchor to anchor. Each row has
its own best constant step size of a grid (0.001, 0.003, ... 3, walked from the middle until both neighbours are worse),
found on {len(_TUNING_SEEDS)} further seeds. The period of STIMULUS is the batch size; there is no safeguard. Targets
(column bar): the loss is at most 1.02 times that with weights at every step; with S >= 8 loss and stationarity are
lower. Means leave out runs that diverge, and the column of the loss says how many did.
"""
COLUMNS = ["problem", "S", "passes", "method", "weights", "step size", "steps", "solves", "loss", "stationarity"]
COLUMNS += ["CPU seconds", "bar", "met"]

_DIVERGED = 1e9  # the loss of a run that has failed, or ends above it
_GRID = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
_WEIGHTINGS = {"every": MinNorm, "smgd": lambda: Averaged(MinNorm()), "stimulus": lambda: Smoothed(MinNorm(), 0.5)}


def attributes(seed: int) -> Problem:
    from stimulus_moo.lab.experiments.attributes import ATTRIBUTES

    return ATTRIBUTES.build(ATTRIBUTES.settings.override({"n": 256}), seed, None)


ATTRIBUTES = Case("40 attributes of 256 synthetic images, narrow ResNet-18", attributes, 8, passes=0, held_out=False)

#: problem: its case, and the budgets of SMGD and STIMULUS in passes
PROBLEMS: dict[str, tuple[Case, dict[str, int]]] = {
    "riverflow": (CASES["riverflow"], {"smgd": 400_000, "stimulus": 400_000}),
    "digits": (CASES["digits"], {"smgd": 60_000, "stimulus": 60_000}),
    "logistic": (CASES["logistic"], {"smgd": 300_000, "stimulus": 300_000}),
    "ill-conditioned": (CASES["ill-conditioned"], {"smgd": 300_000, "stimulus": 300_000}),
    "multimnist": (CASES["multimnist"], {"smgd": 30_000, "stimulus": 60_000}),
    "attributes": (ATTRIBUTES, {"smgd": 30_000, "stimulus": 30_000}),
}


def train(problem: str, method: str, due: bool, lr: float, seed: int, shrink: int = 1) -> Found:
    """Train from one seed; return what was reached and what it cost, infinite losses after a run has failed."""
    case, budgets = PROBLEMS[problem]
    made = case.make(seed)
    weighting: Any = _WEIGHTINGS[method if due else "every"]()
    solves = 0

    def counted(gramian: Tensor) -> Tensor:
        nonlocal solves
        solves += 1
        return weighting(gramian)

    start = process_time()
    with suppress(NonFiniteError):
        result = fit(
            made.model,
            made.losses,
            made.data,
            method=method,
            lr=lr,
            guard=False,
            weighting=counted,
            reweigh="auto" if due else 1,
            batch_size=case.batch,
            period=case.batch,
            passes=budgets[method] // shrink,
            seed=seed,
            progress=False,
        )
        if math.isfinite(sum(result.losses)):
            return {
                "loss": min(statistics.fmean(result.losses), _DIVERGED),
                "stationarity": min(result.stationarity, _DIVERGED),
                "objectives": len(result.losses),
                "steps": result.steps,
                "solves": solves,
                "seconds": process_time() - start,
            }
    return {"loss": _DIVERGED, "stationarity": _DIVERGED, "objectives": 0, "steps": 0, "solves": 0, "seconds": 0.0}


class Comparison:
    """The cells of one problem."""

    def __init__(self, problem: str, folder: Path, *, quick: bool) -> None:
        self.problem, self.folder, self.quick = problem, folder, quick
        self.seeds = _SEEDS[:1] if quick else _SEEDS

    def _runs(self, method: str, due: bool, rates: list[float], seeds: tuple[int, ...]) -> list[Found]:
        shrink = 100 if self.quick else 1
        cells = [
            {"problem": self.problem, "method": method, "due": due, "lr": rate, "seed": seed, "shrink": shrink}
            for rate in rates
            for seed in seeds
        ]
        version = f"2, {PROBLEMS[self.problem][1][method]} passes, torch {torch.__version__}"
        return fill(self.folder, train, cells, version, workers=1 if self.quick else None)

    def best_rate(self, method: str, due: bool) -> float:
        """Return the step size of the grid with the lowest loss, walking from the middle."""
        if self.quick:
            return 0.1
        tried: dict[int, float] = {}
        place = _GRID.index(0.1)
        while True:
            around = [i for i in (place - 1, place, place + 1) if 0 <= i < len(_GRID)]
            new = [i for i in around if i not in tried]
            found = iter(self._runs(method, due, [_GRID[i] for i in new], _TUNING_SEEDS))
            tried |= {i: statistics.fmean(next(found)["loss"] for _ in _TUNING_SEEDS) for i in new}
            best = min(tried, key=lambda i: tried[i])
            if best == place:
                return _GRID[place]
            place = best

    def rows(self) -> list[list[object]]:
        """Return the rows of the problem."""
        case, budgets = PROBLEMS[self.problem]
        table: list[list[object]] = []
        for method, title in (("smgd", "SMGD"), ("stimulus", "STIMULUS")):
            means = {}
            for due in (False, True):
                rate = self.best_rate(method, due)
                runs = self._runs(method, due, [rate], self.seeds)
                finished = [run for run in runs if run["loss"] < _DIVERGED] or runs
                means[due] = {key: statistics.fmean(run[key] for run in finished) for key in runs[0]}
                means[due]["diverged"] = len(runs) - len(finished)
                mean, bar, met = means[due], "", ""
                failed = f" ({mean['diverged']} of {len(runs)} diverged)" if mean["diverged"] else ""
                if due:
                    bar, met = _verdict(means[False], mean)
                table.append(
                    [case.title, round(mean["objectives"]), budgets[method], title, "when due" if due else "every step",
                     rate, round(mean["steps"]), round(mean["solves"]), f"{mean['loss']:.4g}{failed}",
                     f"{mean['stationarity']:.1e}", f"{mean['seconds']:.1f}", bar, met]
                )  # fmt: skip
        return table


def _verdict(every: dict[str, float], due: dict[str, float]) -> tuple[str, str]:
    loss, stationarity = due["loss"] / every["loss"], due["stationarity"] / every["stationarity"]
    met = loss <= 1.02 and due["diverged"] <= every["diverged"]
    bar = "loss at most 1.02 times"
    if due["objectives"] >= 8:
        met, bar = loss < 1.0 and stationarity < 1.0, "loss and stationarity lower"
    figures = f"{loss:.3g} of the loss, {stationarity:.2g} of the stationarity"
    return bar, f"{'met' if met else 'missed'}: {figures}"


def rows(quick: bool = False) -> list[list[object]]:
    if quick:
        with tempfile.TemporaryDirectory() as folder:
            return Comparison("digits", Path(folder), quick=True).rows()
    return [row for problem in PROBLEMS for row in Comparison(problem, _FOLDER, quick=False).rows()]
