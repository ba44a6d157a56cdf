"""Time of each stage of a step, measured with timers patched around the stages of ``MultiGradient.backward``."""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Any
from unittest.mock import patch

import torch

from benchmarks.cases import Case, of_step_cost
from benchmarks.sides import SETTLED, OurStep, as_list
from benchmarks.timing import milliseconds
from stimulus_moo import MultiGradient
from stimulus_moo._engine import solving, transaction
from stimulus_moo._engine.accumulator import Accumulator
from stimulus_moo._engine.differentiation import Engine
from stimulus_moo._engine.objective import Objective
from stimulus_moo._engine.replay import ParameterSwap, Snapshot
from stimulus_moo._engine.rows import Rows
from stimulus_moo.weightings import MinNorm

TITLE = "Where the time of a step goes"
TEXT = """\
An inner STIMULUS step (two points, all rows, weights, `p.grad`, SGD) on the cases of the tables above, stage by stage.
Times are medians over the steps; the time of a nested stage is not included in the outer one. The timers themselves
cost about a microsecond per call, which is visible in the smallest case. The floor column is the same stage of the bare
work at two points, timed in alternation with the step. Time above the floor, and every stage without a floor, is
overhead of the library.
"""
COLUMNS = ["case", "engine", "stage", "ms", "share of the step", "floor, ms"]

_FORWARD, _ROWS, _COMPILED, _REST = "losses, forward", "row gradients", "compiled update", "bookkeeping"
#: stage -> (owner, functions) that belong to it; the rest of ``backward`` is bookkeeping
_STAGES: dict[str, list[tuple[Any, list[str]]]] = {
    _FORWARD: [(Objective, ["evaluate"])],
    _ROWS: [(Engine, ["jacobian", "stream"])],
    "adding rows": [
        (Accumulator, ["take_row", "take_one", "take_stacked", "end_row"]),
        (Rows, ["add_jacobian", "merge", "clear", "settle"]),
    ],
    _COMPILED: [(transaction, ["evaluate_compiled"])],
    "exchange of x_t and x_{t-1}": [(ParameterSwap, ["__enter__", "back"])],
    "snapshots of random state and buffers": [(Snapshot, ["__init__", "restore", "undrawn"])],
    "Gramian": [(Rows, ["gramian"])],
    "solver": [(MinNorm, ["__call__"]), (solving, ["checked"])],
    "combination": [(Rows, ["combine"])],
    "copy of x_t, commit": [(transaction.Transaction, ["commit"])],
    _REST: [(MultiGradient, ["backward"])],
}
_OPTIMIZER, _TOTAL = "optimizer", "all"


def rows(quick: bool = False) -> list[list[object]]:
    mlp, lenet, resnet = of_step_cost(quick)
    steps = 2 if quick else 0
    return [
        *profile(mlp, "auto" if quick else "compiled", steps or 2000),
        *profile(mlp, "auto", steps or 500),
        *profile(lenet, "auto", steps or 50),
        *profile(resnet, "auto", steps or 5),
    ]


def profile(case: Case, engine: str, steps: int) -> list[list[object]]:
    """Return the rows of one case."""
    step = OurStep(case, points=2, engine=engine)
    in_use = step.settle(SETTLED if steps > 2 else 3)
    bare = _Bare(case)
    bare()
    stopwatch = Stopwatch()
    records, floors = [], []
    with stopwatch.on_stages(step):
        for _ in range(steps):
            step()
            records.append(stopwatch.lap())
            bare()
            floors.append(bare.lap())
    medians = _medians(records)
    total = sum(medians.values())
    base = _medians(floors)
    label = engine if engine == in_use else f"{engine}: {in_use}"
    table: list[list[object]] = []
    for stage in [*_STAGES, _OPTIMIZER]:
        if medians.get(stage) and (stage != _COMPILED or in_use == "compiled"):
            shown = milliseconds(base[stage]) if stage in base else ""
            table.append(
                [case.name, label, stage, milliseconds(medians[stage]), f"{medians[stage] / total:.1%}", shown]
            )
    floor = milliseconds(sum(base.values()))
    return [*table, [case.name, label, _TOTAL, milliseconds(total), "100.0%", floor]]


def _medians(records: list[dict[str, float]]) -> dict[str, float]:
    names = {name for record in records for name in record}
    return {name: statistics.median(record.get(name, 0.0) for record in records) for name in names}


class Stopwatch:
    """Seconds by stage; while a nested stage runs, the outer one is paused."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = defaultdict(float)
        self._open: list[str] = []
        self._since = 0.0

    def lap(self) -> dict[str, float]:
        """Return the seconds since the last call."""
        seconds, self._seconds = dict(self._seconds), defaultdict(float)
        return seconds

    def around(self, stage: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def timed(*arguments: Any, **options: Any) -> Any:
            self._switch(lambda: self._open.append(stage))
            try:
                return function(*arguments, **options)
            finally:
                self._switch(self._open.pop)

        return timed

    def _switch(self, change: Callable[[], object]) -> None:
        now = time.perf_counter()
        if self._open:
            self._seconds[self._open[-1]] += now - self._since
        change()
        self._since = now

    @contextmanager
    def on_stages(self, step: OurStep) -> Iterator[None]:
        """Patch timers around every stage while the context is active."""
        with ExitStack() as stack:
            for stage, places in _STAGES.items():
                for place, names in places:
                    for name in names:
                        timed = self.around(stage, getattr(place, name))
                        stack.enter_context(patch.object(place, name, timed))
            stack.enter_context(patch.object(step.optimizer, "step", self.around(_OPTIMIZER, step.optimizer.step)))
            yield


class _Bare:
    """The floor at two points, with its two stages timed."""

    def __init__(self, case: Case) -> None:
        self.case, self.model = case, case.copy()
        self.parameters = list(self.model.parameters())
        self._seconds: dict[str, float] = defaultdict(float)

    def __call__(self) -> None:
        for _ in range(2):
            start = time.perf_counter()
            losses = as_list(self.case.losses(self.model, self.case.batch))
            middle = time.perf_counter()
            for s, loss in enumerate(losses):
                torch.autograd.grad(loss, self.parameters, retain_graph=s + 1 < len(losses), allow_unused=True)
            self._seconds[_FORWARD] += middle - start
            self._seconds[_ROWS] += time.perf_counter() - middle

    def lap(self) -> dict[str, float]:
        seconds, self._seconds = dict(self._seconds), defaultdict(float)
        return seconds
