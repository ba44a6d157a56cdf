"""Cost of a step under kept weights, compared with the bare weighted-sum step and with TorchJD's MGDA step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from benchmarks.cases import Case, of_step_cost
from benchmarks.sides import SETTLED, TORCHJD, OurStep, TorchJDStep, TwoPoints, WeightedSum, verdict
from benchmarks.timing import Timings, in_blocks, milliseconds, seconds_of
from stimulus_moo import Fixed

_REWEIGH, _STRETCH = 30, 60
_LONG, _SELDOM = 2.0, 10  # sides whose blocks take more seconds are timed in one of so many blocks
_FIRST, _OBSERVED = 16, 64  # without a safeguard, so many first steps and one in so many later ones are observed

TITLE = "Cost of a step under kept weights"
TEXT = f"""\
Between two solves for the weights, `reweigh=` keeps lambda, and a step differentiates the one loss lambda . F. The
*weighted sum* is the bare step of scalarisation: forward pass, one backward pass of the mean of the losses (one dot
product if the losses are a tensor), SGD, `zero_grad`. SGD is torch's fused one on all sides. The sides:

- *kept-weights step*: SMGD after its only solve. *Scalarisation*: `Fixed` weights through `MultiGradient`.
- *SMGD, reweigh={_REWEIGH}*: the mean over {_STRETCH} consecutive steps, two solves from all S rows included; with the
  exact Gramian, or with its sketch.
- *STIMULUS inner step*: two points, its anchor is taken before the measurement; with kept weights
  (`reweigh="anchor"`) or with all rows.
- *inner step by hand*: the same rule on the weighted sum, written without checks, roll-back or weights, as a reference
  for the cost of a step at two points.
- *SMGD, all rows*: the papers' rule, which solves at every step.
- *TorchJD*: `backward`, `jac_to_grad` with `MGDA`, SGD. Ratios are to the fastest of its options on the case; options
  that are more than twice as slow are timed with a single call.

"Passes" are derivatives of one scalar per sample and step (`mg.passes`). Every side has its own copy of the model. Our
sides make {SETTLED} steps before the measurement, or 3 if a step takes more than a second, since the first {_FIRST}
steps of a run are observed, and only one in {_OBSERVED} after them. The sides are timed in alternating blocks, with a
block of the weighted sum before each block of another side; a block of a two-point side is a multiple of {_OBSERVED}
steps, one of which is observed, except on models of more than a million parameters, whose blocks are shorter. Sides
whose blocks take more than {_LONG:g} s are timed in one of {_SELDOM} blocks, each after as many blocks of the weighted
sum. Ratios are computed block by block and
shown as median (lower quartile-upper quartile); smaller is better.
"""
COLUMNS = ["case", "side", "engine", "passes", "ms per step", "/ weighted sum", "/ TorchJD", "bar", "met"]

_SUM, _KEPT, _FIXED, _ALL = "weighted sum", "kept-weights step", "scalarisation, Fixed", "SMGD, all rows"
_HAND = "inner step by hand"
_EXACT, _SKETCH = (f"SMGD, reweigh={_REWEIGH}, {gramian} Gramian" for gramian in ("exact", "sketched"))
_INNER, _INNER_ALL = (f"STIMULUS inner step, {how}" for how in ('reweigh="anchor"', "all rows"))
_NEVER = 10**9
_LARGE = 10**6  # parameters
_SLOW = 1.0  # seconds

#: points and options of our sides; neighbours in a block are those that are compared with each other
_OURS: dict[str, dict[str, Any]] = {
    _KEPT: {"points": 1, "reweigh": _NEVER},
    _FIXED: {"points": 1, "weighting": Fixed()},
    _INNER: {"points": 2, "reweigh": "anchor"},
    _EXACT: {"points": 1, "reweigh": _REWEIGH},
    _SKETCH: {"points": 1, "reweigh": _REWEIGH, "gramian": "sketch"},
    _INNER_ALL: {"points": 2},
    _ALL: {"points": 1},
}

#: by kind of case, side and engine: the largest ratios to the weighted sum and to TorchJD's step
_BARS: dict[tuple[str, str, str], tuple[float | None, float | None]] = {
    ("ResNet-18", _KEPT, "auto"): (1.10, None),
    ("ResNet-18", _INNER, "auto"): (2.2, None),
    ("ResNet-18", _EXACT, "auto"): (2.2, 1 / 25),
    ("ResNet-18", _SKETCH, "auto"): (2.2, 1 / 25),
    ("MLP", _INNER, "compiled"): (None, 0.10),
    ("MLP", _INNER_ALL, "compiled"): (None, 0.20),
    ("LeNet", _KEPT, "auto"): (1.10, None),
    ("LeNet", _ALL, "auto"): (None, 1.00),
}


@dataclass
class _Side:
    """A step that is timed, and how often: in a block, the calls are a multiple of ``multiple``."""

    label: str
    step: Callable[[], object]
    seconds: float  # of a step, roughly
    passes: int | None = None  # per sample and step; None if the step counts them
    multiple: int = 1
    engine: str = ""  # as asked for
    counted: tuple[int, int] = (0, 0)  # steps and passes before the measurement

    @property
    def name(self) -> str:
        return f"{self.label}, {self.engine}" if self.engine else self.label

    def calls(self, target: float) -> int:
        """Return how many calls fill a block of so many seconds."""
        return self.multiple * max(1, round(target / (self.multiple * self.seconds)))


def rows(quick: bool = False) -> list[list[object]]:
    return [row for case in of_step_cost(quick) for row in _case(case, quick)]


def _case(case: Case, quick: bool) -> list[list[object]]:
    small = _kind(case) == "MLP"
    peers, slow = _peers(case)
    engines = ("auto", "compiled") if small and not quick else ("auto",)
    bare = _bare(case, _SUM, WeightedSum(case), 1, quick), _bare(case, _HAND, TwoPoints(case), 2, quick)
    sides = [*bare, *(_ours(case, label, engine, quick) for engine in engines for label in _OURS), *peers]
    target, blocks = (0.001, 2) if quick else (0.05, 31) if small else (0.3, 60)
    calls = {side.name: side.calls(target) for side in sides}
    every = {side.name: _SELDOM for side in sides if calls[side.name] * side.seconds > _LONG}
    timings = in_blocks({side.name: side.step for side in sides}, calls, blocks, every, _SUM)
    peer = min((side.name for side in peers), key=lambda name: timings[name])
    table = [_row(case, timings, side, peer) for side in sides]
    for name, seconds in slow.items():
        ratios = f"{seconds / timings[_SUM]:.2f}", f"{seconds / timings[peer]:.2f}"
        label = f"{name} (timed once)"
        table.append([case.name, label, "", case.objectives, milliseconds(seconds), *ratios, "", ""])
    return table


def _kind(case: Case) -> str:
    return case.name.replace(",", " ").split()[0]


def _bare(case: Case, label: str, step: Callable[[], object], passes: int, quick: bool) -> _Side:
    seconds_of(step, 3 if quick else SETTLED)
    return _Side(label, step, seconds_of(step, 3), passes)


def _ours(case: Case, label: str, engine: str, quick: bool) -> _Side:
    options = _OURS[label]
    step = OurStep(case, engine=engine, **options)
    step.settle(3)
    slow = seconds_of(step) > _SLOW
    stretch = options.get("reweigh") == _REWEIGH
    if not slow and not quick:
        step.settle(_REWEIGH if stretch else SETTLED)
    observed = _OBSERVED if options["points"] == 2 and case.size <= _LARGE else 1
    multiple = 1 if slow or quick else _STRETCH if stretch else observed
    seconds, counters = seconds_of(step, 1 if slow else 3), step.multigradient
    return _Side(label, step, seconds, None, multiple, engine, (counters.t, counters.passes))


def _peers(case: Case) -> tuple[list[_Side], dict[str, float]]:
    """Return TorchJD's step with each option that is fast enough for timing, and the seconds of the others."""
    steps = {name: TorchJDStep(case, **options) for name, options in TORCHJD.items()}
    first = {name: seconds_of(step) for name, step in steps.items()}
    most = max(3.0, 2 * min(first.values()))  # the first call of all also imports TorchJD
    near = [name for name, taken in first.items() if taken <= most]
    seconds = {name: seconds_of(steps[name], 1 if first[name] > _SLOW else 5) for name in near}
    fast = [name for name in near if seconds[name] <= 2 * min(seconds.values())]
    slow = {name: seconds.get(name, first[name]) for name in steps if name not in fast}
    return [_Side(name, steps[name], seconds[name], case.objectives) for name in fast], slow


def _row(case: Case, timings: Timings, side: _Side, peer: str) -> list[object]:
    label = side.label + (" (the peer)" if side.label == peer else "")
    engine, passes = _counted(case, side)
    ratios = timings.ratio(side.name, _SUM), timings.ratio(side.name, peer)
    limits = _BARS.get((_kind(case), side.label, side.engine), (None, None))
    pairs = [(ratio, limit, of) for ratio, limit, of in zip(ratios, limits, (_SUM, "TorchJD"), strict=True) if limit]
    bar = ", ".join(f"at most {limit:.2f} of {'the ' * (of == _SUM)}{of}" for _, limit, of in pairs)
    met = ""
    if pairs:
        met = verdict(all(r.median <= limit for r, limit, _ in pairs), ", ".join(str(r) for r, _, _ in pairs))
    return [case.name, label, engine, passes, timings.milliseconds(side.name), *ratios, bar, met]


def _counted(case: Case, side: _Side) -> tuple[str, str]:
    """Return the engine, as asked for and in use, and the passes per sample and step during the measurement."""
    if not isinstance(side.step, OurStep):
        return "", str(side.passes)
    mg, (t, passes) = side.step.multigradient, side.counted
    engine = side.engine if mg.engine == side.engine else f"{side.engine}: {mg.engine}"
    return engine, f"{(mg.passes - passes) / (mg.t - t) / len(case.batch[0]):.3g}"
