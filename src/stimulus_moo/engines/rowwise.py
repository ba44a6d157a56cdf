"""One backward pass per objective through one shared graph: works with everything, and holds one row at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

#: (objective, indices of the parameters it reaches, its gradient for each of them)
Row = tuple[int, list[int], tuple[Tensor | None, ...]]


def rowwise(losses: Sequence[Tensor], parameters: Sequence[Tensor], members: Sequence[list[int]]) -> Iterator[Row]:
    """Yield the row of every loss in turn; the graph is freed with the last one."""
    last = len(losses) - 1
    for objective, loss in enumerate(losses):
        chosen = [parameters[i] for i in members[objective]]
        gradients = torch.autograd.grad(loss, chosen, retain_graph=objective < last, allow_unused=True)
        yield objective, members[objective], gradients
