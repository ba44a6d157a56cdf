"""Compare the engines, and measure how the cost of a step grows with S, P and the batch size."""

from __future__ import annotations

import math
import os
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from unittest.mock import patch

import torch

from benchmarks.cases import Case, convolutional, mlp
from benchmarks.sides import SETTLED, OurStep
from benchmarks.timing import Timings, alternate
from stimulus_moo import StimulusWarning
from stimulus_moo._engine.differentiation import BATCHED_ENTRIES, BATCHED_OBJECTIVES, choose

TITLE = "Engines, and growth with S, P and batch size"
TEXT = f"""\
An inner STIMULUS step (two points, weights, `p.grad`, SGD) with each engine, varying one quantity at a time: S, the
number of parameters P, the batch size. Ratios to `rowwise` are computed block by block and shown as median (quartiles);
below 1 the other engine is faster. `auto` selects `batched` from S = {BATCHED_OBJECTIVES} up to S x P =
{BATCHED_ENTRIES:,} for models without convolutions or recurrent layers (`_engine/differentiation.py`). The last column
shows whether the rule is right: the selected engine is the faster of the two, or within a tenth of it. `compiled` is
measured on some rows. Compilation is timed with an empty cache of compiled functions and a warm header cache of the
compiler, which a machine fills once. "Pays after steps" is the number of steps after which the gain over the better of
the other two engines has made up for the compilation.
"""
COLUMNS = [
    "varied",
    "model",
    "P",
    "S",
    "batch",
    "rowwise, ms",
    "batched, ms",
    "batched / rowwise",
    "compiled, ms",
    "compiled / rowwise",
    "compiling, s",
    "pays after steps",
    "auto takes",
    "the faster",
]


@dataclass(frozen=True)
class _Point:
    varied: str
    model: str
    batch: int
    build: Callable[[], Case]
    compiled: bool = False


def rows(quick: bool = False) -> list[list[object]]:
    if quick:
        return [_row(_perceptron("S", 8, 3, 4), quick=True), _row(_conv(2, 4), quick=True)]
    with tempfile.TemporaryDirectory() as folder, patch.dict(os.environ, TORCHINDUCTOR_CACHE_DIR=folder):
        _compile(mlp(5, 4, 2))  # fill the header cache
        return [_row(point) for point in _points()]


def _points() -> list[_Point]:
    points = [_perceptron("S", 64, s, 32, compiled=s in (2, 8, 32)) for s in (2, 3, 4, 8, 16, 32, 64)]
    points += [_perceptron("S, wide", 256, s, 32) for s in (2, 3, 4, 8)]
    for s, widths in ((8, (8, 32, 128, 256, 320, 384, 512, 1024)), (3, (64, 256, 320, 512)), (32, (256, 320, 512))):
        points += [_perceptron(f"P, S = {s}", w, s, 32, compiled=s == 8 and w in (8, 256)) for w in widths]
    points += [_perceptron("batch", 64, 8, batch, compiled=batch == 512) for batch in (8, 128, 512)]
    points += [_perceptron("batch, wide", 256, 8, batch) for batch in (8, 128, 512)]
    points += [_conv(s, 32, compiled=s == 8) for s in (2, 3, 8, 32)]
    points += [_conv(8, 4)]
    return points


def _perceptron(varied: str, width: int, objectives: int, batch: int, *, compiled: bool = False) -> _Point:
    widths = (64, width, width, objectives)
    return _Point(varied, f"MLP 64-{width}-{width}-S", batch, lambda: mlp(*widths, batch=batch), compiled)


def _conv(objectives: int, batch: int, *, compiled: bool = False) -> _Point:
    return _Point("conv net", "small conv net", batch, lambda: convolutional(objectives, batch=batch), compiled)


def _row(point: _Point, *, quick: bool = False) -> list[object]:
    case = point.build()
    steps = {name: OurStep(case, points=2, engine=name) for name in ("rowwise", "batched")}
    for step in steps.values():
        step.settle(3 if quick else SETTLED)
    seconds_to_compile, given_up = math.nan, False
    if point.compiled:
        steps["compiled"], seconds_to_compile = _compile(case)
        given_up = steps["compiled"].multigradient.engine != "compiled"
        if given_up:
            del steps["compiled"]
    timings = alternate(steps, blocks=2 if quick else 15, target=0.001 if quick else 0.05)
    chosen = choose(case.model, list(case.model.parameters()), case.objectives)
    best = min(timings["rowwise"], timings["batched"])
    shown = ["gave up", "", "", ""] if given_up else _compiled_cells(timings, seconds_to_compile, best)
    return [
        point.varied,
        point.model,
        case.size,
        case.objectives,
        point.batch,
        timings.milliseconds("rowwise"),
        timings.milliseconds("batched"),
        timings.ratio("batched", "rowwise"),
        *shown,
        chosen,
        "yes" if timings[chosen] <= 1.1 * best else "no",
    ]


def _compiled_cells(timings: Timings, seconds: float, best: float) -> list[object]:
    if "compiled" not in timings:
        return [""] * 4
    gain = best - timings["compiled"]
    pays = f"{math.ceil(seconds / gain):,}" if gain > 0 else "never"
    return [timings.milliseconds("compiled"), timings.ratio("compiled", "rowwise"), f"{seconds:.1f}", pays]


def _compile(case: Case) -> tuple[OurStep, float]:
    """Return the step and the duration of its first compiled call, with an empty cache of compiled functions."""
    torch._dynamo.reset()
    step = OurStep(case, points=2, engine="compiled")
    step()  # the anchor is not compiled
    start = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", StimulusWarning)
        step()
    return step, time.perf_counter() - start
