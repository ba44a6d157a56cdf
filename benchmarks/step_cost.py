"""Cost of one training step, compared with TorchJD's MGDA step at one point and with the bare backward passes."""

from __future__ import annotations

import time
from collections.abc import Callable

from benchmarks.cases import Case, of_step_cost
from benchmarks.sides import SETTLED, TORCHJD, OurStep, TorchJDStep, floor, verdict
from benchmarks.timing import Timings, alternate, milliseconds

TITLE = "Cost of one step"
TEXT = """\
A complete training step: forward pass, S gradient rows, weights, `p.grad`, SGD. SMGD evaluates one point. An inner
STIMULUS step evaluates two; its anchor and 19 more steps are made before the measurement. TorchJD's step is `backward`,
`jac_to_grad` with `MGDA`, and SGD, at one point. SGD is torch's fused one on all sides. The fastest of TorchJD's
options on a case is used for the comparison; options that are more than twice as slow are timed with a single call. The
floor is the bare forward pass and S calls of `torch.autograd.grad`, at one point or at two, without storing anything.
Every side has its own copy of the model. The sides are timed in alternating blocks. Ratios are computed block by block
and shown as median (lower quartile-upper quartile); smaller is better. Targets (column bar): MLP, compiled two-point
step at most 0.20 of TorchJD's one-point step; LeNet and ResNet-18, two-point step at most 1.05 of the floor at two
points, and SMGD at most 1.00 of TorchJD's step. All rows are computed at every step here; the next table has steps
under kept weights, the one after it shows where the time of a step goes.
"""
COLUMNS = ["case", "side", "engine", "ms per step", "/ TorchJD", "/ floor at as many points", "bar", "met"]

_FLOOR = {1: "floor, one point", 2: "floor, two points"}
_OURS = {1: "SMGD", 2: "STIMULUS inner step, two points"}
_ENGINES = ("rowwise", "batched", "compiled", "auto")
_LARGE = 10**6  # parameters: compiled does not support such models, and batched would need S times the activations


def rows(quick: bool = False) -> list[list[object]]:
    return [row for case in of_step_cost(quick) for row in _case(case, quick)]


def _case(case: Case, quick: bool) -> list[list[object]]:
    engines = ("auto",) if quick or case.size > _LARGE else _ENGINES
    sides: dict[str, Callable[[], object]] = {}
    ours: list[tuple[str, int, str, str]] = []  # side, points, requested engine, engine in use
    for points in (2, 1):
        sides[_FLOOR[points]] = floor(case, points=points)
        for engine in engines:
            side, step = f"{_OURS[points]}, {engine}", OurStep(case, points=points, engine=engine)
            ours.append((side, points, engine, step.settle(3 if quick else SETTLED)))
            sides[side] = step
    peers, slow = _peers(case)
    sides |= peers
    timings = alternate(sides, blocks=2 if quick else 7 if case.size > _LARGE else 31, target=0.001 if quick else 0.05)
    peer = min(peers, key=lambda name: timings[name])
    table = [_our_row(case, timings, *own, peer) for own in ours]
    for name, seconds in slow.items():
        ratios = f"{seconds / timings[peer]:.2f}", f"{seconds / timings[_FLOOR[1]]:.2f}"
        table.append([case.name, f"{name} (one call)", "", milliseconds(seconds), *ratios, "", ""])
    for name in peers:
        label = name + (" (the peer)" if name == peer else "")
        table.append(_row(case, timings, name, "", timings.ratio(name, peer), label=label))
    for points, name in _FLOOR.items():
        table.append(_row(case, timings, name, "", "", floor=_FLOOR[points]))
    return table


def _peers(case: Case) -> tuple[dict[str, TorchJDStep], dict[str, float]]:
    """Return TorchJD's step with each option that is fast enough for timing, and the seconds of the others."""
    steps = {name: TorchJDStep(case, **options) for name, options in TORCHJD.items()}
    seconds = {}
    for name, step in steps.items():
        step()
        start = time.perf_counter()
        step()
        seconds[name] = time.perf_counter() - start
    slow = {name: taken for name, taken in seconds.items() if taken > 2 * min(seconds.values())}
    return {name: step for name, step in steps.items() if name not in slow}, slow


def _our_row(case: Case, timings: Timings, side: str, points: int, engine: str, in_use: str, peer: str) -> list[object]:
    to_peer, to_floor = timings.ratio(side, peer), timings.ratio(side, _FLOOR[points])
    shown = engine if engine == in_use else f"{engine}: {in_use}"
    bar = met = ""
    if case.name.startswith("MLP"):
        if points == 2 and engine == "compiled":
            bar, met = "at most 0.20 of TorchJD", verdict(to_peer.median <= 0.20, to_peer)
    elif engine == "auto" and points == 2:
        bar, met = "at most 1.05 of the floor", verdict(to_floor.median <= 1.05, to_floor)
    elif engine == "auto":
        bar, met = "at most 1.00 of TorchJD", verdict(to_peer.median <= 1.0, to_peer)
    return _row(case, timings, side, shown, to_peer, label=_OURS[points], floor=_FLOOR[points], bar=bar, met=met)


def _row(
    case: Case,
    timings: Timings,
    side: str,
    engine: str,
    to_peer: object,
    *,
    label: str | None = None,
    floor: str = _FLOOR[1],
    bar: str = "",
    met: str = "",
) -> list[object]:
    to_floor = str(timings.ratio(side, floor))
    return [case.name, label or side, engine, timings.milliseconds(side), str(to_peer), to_floor, bar, met]
