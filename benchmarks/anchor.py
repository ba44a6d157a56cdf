"""Time of an anchor pass, compared with plain gradient accumulation over the same batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.cases import Case, lenet, mlp
from benchmarks.sides import as_list, verdict
from benchmarks.timing import alternate
from stimulus_moo import MultiGradient, Recursive

TITLE = "A full anchor pass"
TEXT = """\
`MultiGradient.backward()` on an anchor step (`Recursive` with period 1: all batches of the data, weights, `p.grad`)
compared with plain accumulation per row. The plain accumulation makes a forward pass for each batch, calls
`torch.autograd.grad` for each objective, and adds the result to its sum with one `torch._foreach_add_`, scaled by the
batch size; at the end the sums are divided by n. It computes no weights and no `p.grad`. Both sides use the same
batches in alternating blocks: tensors split beforehand, or a `DataLoader` that collates sample by sample, without
workers and with two persistent workers. Ratios are median (quartiles). Target (column bar): at most 1.05.
"""
COLUMNS = ["case", "batches", "ours, ms", "accumulation, ms", "ours / accumulation", "bar", "met"]


def rows(quick: bool = False) -> list[list[object]]:
    if quick:
        return [_row(lenet(32), 16, "cut beforehand", quick=True), _row(mlp(8, 4, 3, batch=64), 16, 0, quick=True)]
    problems = [(lenet(1024), 256), (mlp(64, 128, 128, 8, batch=4096), 256), (mlp(64, 32, 16, 8, 8, batch=1024), 256)]
    return [_row(case, size, how) for case, size in problems for how in ("cut beforehand", 0, 2)]


def _row(case: Case, batch_size: int, how: str | int, *, quick: bool = False) -> list[object]:
    batches: Iterable[Any]
    if isinstance(how, int):
        data = TensorDataset(*case.batch)
        batches = DataLoader(data, batch_size, num_workers=how, persistent_workers=how > 0)
        label = f"DataLoader, {how} workers"
    else:
        batches, label = list(zip(*(column.split(batch_size) for column in case.batch), strict=True)), how
    model = case.copy()
    multigradient = MultiGradient(model, case.losses, Recursive(batches, period=1))
    sides = {"ours": multigradient.backward, "accumulation": _accumulation(case, batches)}
    timings = alternate(sides, blocks=2 if quick else 21, target=0.001 if quick else 0.05)
    ratio = timings.ratio("ours", "accumulation")
    return [
        f"{case.name.split(', batch')[0]}, n = {len(case.batch[0])}",
        f"{label}, {batch_size} samples each",
        timings.milliseconds("ours"),
        timings.milliseconds("accumulation"),
        ratio,
        "at most 1.05",
        verdict(ratio.median <= 1.05, ratio),
    ]


def _accumulation(case: Case, batches: Iterable[Any]) -> Callable[[], list[list[Tensor]]]:
    model = case.copy()
    parameters = list(model.parameters())
    sums = [[torch.zeros_like(parameter) for parameter in parameters] for _ in range(case.objectives)]

    def run() -> list[list[Tensor]]:
        seen = 0
        for row in sums:
            torch._foreach_zero_(row)
        for batch in batches:
            size = len(batch[0])
            losses = as_list(case.losses(model, batch))
            for s, loss in enumerate(losses):
                found = torch.autograd.grad(loss, parameters, retain_graph=s + 1 < len(losses), allow_unused=True)
                reached = [i for i, gradient in enumerate(found) if gradient is not None]
                torch._foreach_add_([sums[s][i] for i in reached], [found[i] for i in reached], alpha=size)
            seen += size
        for row in sums:
            torch._foreach_div_(row, seen)
        return sums

    return run
