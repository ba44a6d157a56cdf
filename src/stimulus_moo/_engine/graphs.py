"""What the graphs of losses tell about how they were computed."""

from collections.abc import Sequence

import torch
from torch import Tensor

from stimulus_moo._engine.hooks import nodes_of


def precision(losses: Sequence[Tensor]) -> torch.dtype:
    """Return the least precise floating type in the graphs of these losses, such as that of autocast.

    >>> import torch
    >>> x = torch.ones(2, requires_grad=True)
    >>> precision([x.sum()]), precision([x.bfloat16().sum().float()])
    (torch.float32, torch.bfloat16)
    """
    kinds: set[torch.dtype] = {part.dtype for node in nodes_of(losses) for part in getattr(node, "_input_metadata", ())}
    kinds |= {loss.dtype for loss in losses}
    return max((kind for kind in kinds if kind.is_floating_point), key=lambda kind: torch.finfo(kind).eps)


def half_attention(losses: Sequence[Tensor]) -> bool:
    """Return whether these losses use attention in half precision, which a vectorised pass may run in a slow loop."""
    if not any(type(node).__name__.startswith("ScaledDotProduct") for node in nodes_of(losses)):
        return False
    return precision(losses) in (torch.bfloat16, torch.float16)
