"""All rows in one vectorised backward pass: few, large operations, where single rows would be many small ones."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from stimulus_moo._engine.rowwise import dense


def batched(losses: Sequence[Tensor], parameters: Sequence[Tensor]) -> list[Tensor | None]:
    """Return every objective's gradients as [S, *shape] per parameter, or None where no loss reaches it.

    The graph is kept, so that single rows can still be had from it.

    Raises:
        RuntimeError: some operation of the graph cannot be vectorised.
    """
    with torch.enable_grad():
        stacked = torch.stack(list(losses))
    directions = torch.eye(len(losses), dtype=stacked.dtype, device=stacked.device)
    gradients = torch.autograd.grad(
        stacked, parameters, directions, is_grads_batched=True, allow_unused=True, retain_graph=True
    )
    return [None if gradient is None else dense(gradient) for gradient in gradients]
