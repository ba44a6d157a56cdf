"""One backward pass per objective through one shared graph: works with everything, and holds one row at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from stimulus_moo.guard import full_precision

#: (objective, indices of the parameters it reaches, its gradient for each of them)
Row = tuple[int, list[int], tuple[Tensor | None, ...]]


def rowwise(losses: Sequence[Tensor], parameters: Sequence[Tensor], members: Sequence[list[int]]) -> Iterator[Row]:
    """Yield the row of every loss in turn, dense; the graph is freed with the last one."""
    last = len(losses) - 1
    devices = {parameter.device for parameter in parameters}
    for objective, loss in enumerate(losses):
        chosen = [parameters[i] for i in members[objective]]
        with full_precision(devices):  # never around the yield: a row that is refused would leave the context open
            gradients = torch.autograd.grad(loss, chosen, retain_graph=objective < last, allow_unused=True)
        yield objective, members[objective], tuple(map(_dense, gradients))


def _dense(gradient: Tensor | None) -> Tensor | None:
    return gradient if gradient is None or gradient.layout is torch.strided else gradient.to_dense()
