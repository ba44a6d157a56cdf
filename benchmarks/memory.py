"""Peak memory of a step above the model and the activations, compared with TorchJD, and its growth with S.

``python -m benchmarks.memory CASE S SIDE`` measures one side and prints the bytes. ``rows`` starts one such process for
every cell, so that the cells share no memory.
"""

from __future__ import annotations

import math
import resource
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from benchmarks.cases import Case, lenet, mlp, resnet
from benchmarks.sides import TORCHJD, OurStep, TorchJDStep, WeightedSum, as_list, verdict

_SECONDS = 300  # for one cell

TITLE = "Peak memory of a step, above the model and the activations"
TEXT = f"""\
In units of P floats, where P is the number of parameters. Each side runs a few steps in its own process under torch's
profiler, and all CPU allocations and releases are summed. The peak of that sum, including everything a side keeps
between steps, is the memory it needs in addition to the model; what Python, torch and the model take is not part of it.
The baseline is the peak of a plain forward pass and the backward pass of one row, which releases each parameter's
gradient immediately: it consists of activations and of what the backward pass itself needs, without gradients. A side
that makes a single backward pass (weighted sum, kept steps) releases activations during that pass; so does its
baseline. The figures are peak minus baseline. They can be small if activations dominate: a matrix that is allocated
after most activations have been released does not raise the peak. "Held" is what remains between steps. "Estimate" is
the result of `MultiGradient.memory_estimate()` before the first step.

*STIMULUS inner step* and *SMGD* compute all rows at every step. Under kept weights (`reweigh=`) there are two figures.
The peak of the *kept steps* leaves out the solve before them, but not what remains of it. The *whole run* includes
solves or anchors, here from the sketch of the Gramian. The *weighted sum* is the bare step of scalarisation.

Targets (column bar): with all rows, a step needs at most S + 3, and less than TorchJD with its default options;
TorchJD's most memory-efficient ("leanest") options are shown for comparison. On ResNet-18 with S = 40, kept steps need
at most 5, and a whole run with the sketch at most 6. A cell that takes more than {_SECONDS // 60} minutes or runs out
of memory is *not measured*.
"""
COLUMNS = ["case", "side", "S", "P", "baseline", "peak above it", "held", "estimate", "bar", "met"]


@dataclass(frozen=True)
class _Run:
    """Steps of this library: ``before`` of them are made before the measurement."""

    points: int
    options: dict[str, Any] = field(default_factory=dict)
    before: int = 0
    steps: int = 3
    most: int | None = None  # the bar, in units of P floats


_BASELINE, _SINGLE, _SUM = "baseline", "baseline of a single backward pass", "weighted sum"
_SKETCH = {"gramian": "sketch"}
_OURS = {
    "STIMULUS inner step": _Run(2),  # the first one is the anchor
    "SMGD": _Run(1),
    "kept-weights step": _Run(1, {"reweigh": 10**9}, before=1, most=5),
    "STIMULUS inner step, reweigh='anchor'": _Run(2, {"reweigh": "anchor"}, before=1, most=5),
    "SMGD, reweigh, sketch, whole run": _Run(1, {"reweigh": 2, **_SKETCH}, steps=4, most=6),
    "STIMULUS, reweigh='anchor', sketch, whole run": _Run(
        2, {"reweigh": "anchor", "period": 3, **_SKETCH}, steps=5, most=6
    ),
}
_BUILD: dict[str, Callable[[int], Case]] = {
    "LeNet, batch 96": lambda objectives: lenet(),
    "ResNet-18, batch 8": lambda objectives: resnet(objectives),
    "MLP 256-512-512-S, batch 32": lambda objectives: mlp(256, 512, 512, objectives, batch=32),
    "MLP 16-8-S, batch 8": lambda objectives: mlp(16, 8, objectives),
}
_LENET, _RESNET, _MID, _TINY = _BUILD
_BARS_AT = _RESNET, 40  # of kept weights
_MIDDLE = "TorchJD MGDA, chunk size 1"  # neither its default nor its leanest options: not part of the growth

Found = dict[str, int] | str  # bytes, or why there are none


def rows(quick: bool = False) -> list[list[object]]:
    if quick:
        return _table(_TINY, 3, measure)
    table = _table(_LENET, 2, _in_a_process)
    for s in (2, 8, 40, 128):
        table += _table(_RESNET, s, _in_a_process, growth=s != 40)
    return table + [row for s in (2, 4, 8, 16, 32, 64) for row in _table(_MID, s, _in_a_process, growth=True)]


def _table(
    name: str, objectives: int, measured: Callable[[str, int, str], Found], *, growth: bool = False
) -> list[list[object]]:
    unit = 4 * _BUILD[name](objectives).size  # bytes of P floats
    peers = [side for side in TORCHJD if not growth or side != _MIDDLE]
    found = {side: measured(name, objectives, side) for side in (_BASELINE, _SINGLE, _SUM, *_OURS, *peers)}
    several, single = (_peak(found.pop(side)) for side in (_BASELINE, _SINGLE))
    own = {side: single if side == _SUM or (side in _OURS and _OURS[side].before) else several for side in found}
    above = {side: (cell["peak"] - own[side]) / unit for side, cell in found.items() if not isinstance(cell, str)}
    table: list[list[object]] = []
    for side, cell in found.items():
        start = [name, side, objectives, unit // 4, f"{own[side] / unit:.2f}"]
        if isinstance(cell, str):
            table.append([*start, f"not measured: {cell}", "", "", "", ""])
            continue
        bar, met = _bar(name, objectives, side, above, growth=growth)
        estimate = f"{cell['estimate'] / unit:.2f}" if "estimate" in cell else ""
        table.append([*start, f"{above[side]:.2f}", f"{cell['held'] / unit:.2f}", estimate, bar, met])
    return table


def _peak(cell: Found) -> int:
    if isinstance(cell, str):
        raise RuntimeError(f"the baseline was not measured: {cell}")
    return cell["peak"]


def _bar(name: str, objectives: int, side: str, above: dict[str, float], *, growth: bool) -> tuple[str, str]:
    """Return the target of a side and whether it was met; most have none."""
    ours = _OURS.get(side)
    if ours is None or growth:
        return "", ""
    if ours.most is not None:
        if (name, objectives) != _BARS_AT:
            return "", ""
        return f"at most {ours.most}", verdict(above[side] <= ours.most, f"{above[side]:.2f}")
    default, *others = (above.get(peer, math.inf) for peer in TORCHJD)
    leanest = min(default, *others)
    bar = f"at most S + 3 = {objectives + 3}, below TorchJD's {default:.2f} (leanest {leanest:.2f})"
    met = verdict(above[side] <= objectives + 3 and above[side] < default, f"{above[side]:.2f}")
    return bar, met + ("" if above[side] < leanest else f" (TorchJD's leanest: {leanest:.2f})")


def measure(name: str, objectives: int, side: str) -> dict[str, int]:
    """Return bytes: the peak above the model, the memory held after the last step, and the library's estimate."""
    case = _BUILD[name](objectives)
    if side in (_BASELINE, _SINGLE):
        peak, held = traced(lambda: _one_row(case, retain=side == _BASELINE), 1)
        return {"peak": peak, "held": held}
    if side not in _OURS:
        step: Any = WeightedSum(case) if side == _SUM else TorchJDStep(case, **TORCHJD[side])
        peak, held = traced(step, 2)  # nothing is kept, so the second step equals the first
        return {"peak": peak, "held": held}
    run = _OURS[side]
    step = OurStep(case, points=run.points, **run.options)
    estimate = step.multigradient.memory_estimate(case.batch).total
    peak, held = traced(step, run.steps, before=run.before)
    found = {"peak": peak, "held": held}
    return found if run.before else {**found, "estimate": estimate}  # it also bounds what was made before


def _one_row(case: Case, *, retain: bool) -> None:
    for parameter in case.model.parameters():
        parameter.register_post_accumulate_grad_hook(_let_go)
    losses = as_list(case.losses(case.model, case.batch))
    losses[0].backward(retain_graph=retain and len(losses) > 1)


def _let_go(parameter: torch.Tensor) -> None:
    parameter.grad = None


def traced(function: Callable[[], object], calls: int, before: int = 0) -> tuple[int, int]:
    """Return the peak and the final value of the sum of all allocations and releases, in bytes.

    The peak is that of the last ``calls`` calls; what the ``before`` calls in front of them have left counts.
    """
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as traced:
        for _ in range(before):
            function()
        with record_function("measured"):
            for _ in range(calls):
                function()
    events = list(traced.profiler.kineto_results.events())
    start = next(event.start_ns() for event in events if event.name() == "measured")
    changes = [event for event in events if event.name() == "[memory]"]
    total = peak = 0
    for event in sorted(changes, key=lambda event: event.start_ns()):
        total += event.nbytes()
        if event.start_ns() >= start:
            peak = max(peak, total)
    return peak, total


def _in_a_process(name: str, objectives: int, side: str) -> Found:
    command = [sys.executable, "-m", "benchmarks.memory", name, str(objectives), side]
    folder = Path(__file__).parent.parent
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=_SECONDS)
    except subprocess.TimeoutExpired:
        return f"more than {_SECONDS // 60} minutes"
    if done.returncode:
        if done.returncode == -signal.SIGKILL or "allocate memory" in done.stderr:
            return "out of memory"
        raise RuntimeError(done.stderr)
    pairs = (line.split("=") for line in done.stdout.splitlines() if "=" in line)
    return {key: int(value) for key, value in pairs}


def _limit_memory() -> None:
    """Let allocations fail before the system runs out of memory and ends other processes; on Linux only."""
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        sizes = dict(line.split(":") for line in meminfo.read_text(encoding="utf-8").splitlines())
        most = int(0.9 * 1024 * int(sizes["MemAvailable"].split()[0]))
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        resource.setrlimit(resource.RLIMIT_DATA, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))


if __name__ == "__main__":
    _limit_memory()
    for key, value in measure(sys.argv[1], int(sys.argv[2]), sys.argv[3]).items():
        print(f"{key}={value}")
