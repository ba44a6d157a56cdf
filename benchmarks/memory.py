"""Peak memory of a step above the model and the activations, compared with TorchJD, and its growth with S.

``python -m benchmarks.memory CASE S SIDE`` measures one side and prints the bytes. ``rows`` starts one such process for
every cell, so that the cells share no memory.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.cases import Case, lenet, mlp, resnet
from benchmarks.sides import TORCHJD, OurStep, TorchJDStep, as_list, verdict

TITLE = "Peak memory of a step, above the model and the activations"
TEXT = """\
In units of P floats, where P is the number of parameters. Each side runs a few steps in its own process under torch's
profiler, and all CPU allocations and releases are summed. The peak of that sum, including everything a side keeps
between steps, is the memory it needs in addition to the model. The baseline is the peak of a plain forward pass and the
backward pass of one row, which releases each parameter's gradient immediately: it consists of activations and of what
the backward pass itself needs, without gradients. The figures are peak minus baseline. They can be small if activations
dominate: a matrix that is allocated after most activations have been released does not raise the peak. "Held" is what
remains between steps. "Estimate" is the result of `MultiGradient.memory_estimate()` before the first step. Targets
(column bar): a step needs at most S + 3, and less than TorchJD with its default options. TorchJD's most
memory-efficient ("leanest") options are shown for comparison.
"""
COLUMNS = ["case", "side", "S", "P", "baseline", "peak above it", "held", "estimate", "bar", "met"]

_BASELINE = "baseline"
_OURS = {"STIMULUS inner step": 2, "SMGD": 1}
_BUILD: dict[str, Callable[[int], Case]] = {
    "LeNet, batch 96": lambda objectives: lenet(),
    "ResNet-18, batch 8": lambda objectives: resnet(objectives),
    "MLP 256-512-512-S, batch 32": lambda objectives: mlp(256, 512, 512, objectives, batch=32),
    "MLP 16-8-S, batch 8": lambda objectives: mlp(16, 8, objectives),
}
_MID, _TINY = list(_BUILD)[2:]
_MIDDLE = "TorchJD MGDA, chunk size 1"  # neither its default nor its leanest options: not part of the growth


def rows(quick: bool = False) -> list[list[object]]:
    if quick:
        return _table(_TINY, 3, measure)
    table = [*_table("LeNet, batch 96", 2, _in_a_process), *_table("ResNet-18, batch 8", 40, _in_a_process)]
    return table + [row for s in (2, 4, 8, 16, 32, 64) for row in _table(_MID, s, _in_a_process, growth=True)]


def _table(
    name: str, objectives: int, measured: Callable[[str, int, str], dict[str, int]], *, growth: bool = False
) -> list[list[object]]:
    unit = 4 * _BUILD[name](objectives).size  # bytes of P floats
    peers = [side for side in TORCHJD if not growth or side != _MIDDLE]
    found = {side: measured(name, objectives, side) for side in (_BASELINE, *_OURS, *peers)}
    baseline = found.pop(_BASELINE)["peak"]
    above = {side: (values["peak"] - baseline) / unit for side, values in found.items()}
    default, leanest = peers[0], min(peers, key=lambda side: above[side])
    table = []
    for side, values in found.items():
        bar = met = ""
        if side in _OURS and not growth:
            bar = (
                f"at most S + 3 = {objectives + 3}, below TorchJD's {above[default]:.2f} (leanest {above[leanest]:.2f})"
            )
            within, below = above[side] <= objectives + 3, above[side] < above[default]
            met = verdict(within and below, f"{above[side]:.2f}")
            met += "" if above[side] < above[leanest] else f" (TorchJD's leanest: {above[leanest]:.2f})"
        estimate = f"{values['estimate'] / unit:.2f}" if "estimate" in values else ""
        table.append(
            [name, side, objectives, unit // 4, f"{baseline / unit:.2f}", f"{above[side]:.2f}",
             f"{values['held'] / unit:.2f}", estimate, bar, met]
        )  # fmt: skip
    return table


def measure(name: str, objectives: int, side: str) -> dict[str, int]:
    """Return bytes: the peak above the model, the memory held after the last step, and the library's estimate."""
    case = _BUILD[name](objectives)
    if side == _BASELINE:
        peak, held = _traced(lambda: _one_row(case), 1)
        return {"peak": peak, "held": held}
    if side in TORCHJD:
        step: Any = TorchJDStep(case, **TORCHJD[side])
        peak, held = _traced(step, 2)  # nothing is kept, so the second step equals the first
        return {"peak": peak, "held": held}
    step = OurStep(case, points=_OURS[side])
    estimate = step.multigradient.memory_estimate(case.batch).total
    peak, held = _traced(step, 3)  # the first one is the anchor
    return {"peak": peak, "held": held, "estimate": estimate}


def _one_row(case: Case) -> None:
    for parameter in case.model.parameters():
        parameter.register_post_accumulate_grad_hook(_let_go)
    losses = as_list(case.losses(case.model, case.batch))
    losses[0].backward(retain_graph=len(losses) > 1)


def _let_go(parameter: torch.Tensor) -> None:
    parameter.grad = None


def _traced(function: Callable[[], object], calls: int) -> tuple[int, int]:
    """Return the peak and the final value of the sum of all allocations and releases, in bytes."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as traced:
        for _ in range(calls):
            function()
    events = [event for event in traced.profiler.kineto_results.events() if event.name() == "[memory]"]
    total = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        total += event.nbytes()
        peak = max(peak, total)
    return peak, total


def _in_a_process(name: str, objectives: int, side: str) -> dict[str, int]:
    command = [sys.executable, "-m", "benchmarks.memory", name, str(objectives), side]
    done = subprocess.run(command, cwd=Path(__file__).parent.parent, capture_output=True, text=True, check=True)
    pairs = (line.split("=") for line in done.stdout.splitlines() if "=" in line)
    return {key: int(value) for key, value in pairs}


if __name__ == "__main__":
    for key, value in measure(sys.argv[1], int(sys.argv[2]), sys.argv[3]).items():
        print(f"{key}={value}")
