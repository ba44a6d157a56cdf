"""Seconds per pass of auto, compared with Adam on the mean of the losses."""

from __future__ import annotations

import time
import warnings

import torch

from benchmarks.cases import Case, of_step_cost
from benchmarks.sides import SETTLED, WeightedSum, verdict
from benchmarks.timing import Timings, milliseconds, seconds_of
from stimulus_moo import Adaptive, Balanced, DoG, MultiGradient, Safeguard, SecondMoment, StimulusWarning
from stimulus_moo.weightings.reweigh import WhenRising

_BAR = 1.3
_KINDS = ("LeNet", "ResNet-18")

TITLE = "Seconds per pass of auto"
TEXT = f"""\
`auto` as `fit` runs it (`Adaptive`, `Balanced`, weights in Adam's metric that are solved for when due, `DoG`,
`SecondMoment`, `Safeguard`), against the bare step of Adam on the mean of the losses: forward pass, one backward pass,
Adam, `zero_grad`. A pass is the derivative of one scalar for one sample; a block of `auto` has as many steps as lie
between two solves at the most, and the solve. The sides are timed in alternating blocks; the ratio is computed block by
block and shown as median (lower quartile-upper quartile). Target: at most {_BAR} times the seconds per pass of Adam.
"""
COLUMNS = ["case", "side", "passes per sample and step", "ms per pass", "/ Adam, mean", "bar", "met"]


class _Auto:
    """A step of auto."""

    def __init__(self, case: Case) -> None:
        self.model, self.batch = case.copy(), case.batch
        self.adam = torch.optim.Adam(self.model.parameters(), lr=1e-4, betas=(0.9, 0.99))
        self.mg = MultiGradient(
            self.model, case.losses, Adaptive([case.batch]), Balanced(memory=0.9), metric=self.adam, reweigh="auto"
        )
        self.rate, self.memory = DoG(self.adam, self.mg), SecondMoment(self.adam, self.mg)
        self.guard = Safeguard(self.adam, self.mg)

    def __call__(self) -> None:
        self.mg.backward(self.batch)
        self.mg.estimator.count = 0  # the batch is always the same, so that its loss would stall  # type: ignore
        self.rate.step()
        self.adam.step()


class _Adam(WeightedSum):
    """A bare step of Adam on the mean."""

    def __init__(self, case: Case) -> None:
        super().__init__(case)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-4)


def rows(quick: bool = False) -> list[list[object]]:
    cases = [case for case in of_step_cost(quick) if case.name.startswith(_KINDS)]
    return [row for case in cases for row in _case(case, quick)]


def _case(case: Case, quick: bool) -> list[list[object]]:
    size = len(case.batch[0])
    auto, plain = _Auto(case), _Adam(case)
    steps = WhenRising.SELDOM * case.objectives + 1  # a solve takes S passes per sample
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", StimulusWarning)
        seconds_of(auto, 2 if quick else SETTLED)
        seconds_of(plain, 2 if quick else SETTLED)
        times: dict[str, list[float]] = {"auto": [], "Adam, mean": []}
        passes = auto.mg.passes
        count = 0
        for _ in range(1 if quick else 5):
            before, start = auto.mg.passes, time.perf_counter()
            for _ in range(2 if quick else steps):
                auto()
                count += 1
            times["auto"].append((time.perf_counter() - start) / (auto.mg.passes - before))
            times["Adam, mean"].append(seconds_of(plain, 2 if quick else max(20, steps // 4)) / size)
    timings = Timings(times)
    ratio = timings.ratio("auto", "Adam, mean")
    each = f"{(auto.mg.passes - passes) / count / size:.3g}"
    return [
        [case.name, "auto", each, milliseconds(timings["auto"]), ratio, f"at most {_BAR} of Adam",
         verdict(ratio.median <= _BAR, str(ratio))],
        [case.name, "Adam, mean", "1", milliseconds(timings["Adam, mean"]), "1.00", "", ""],
    ]  # fmt: skip
