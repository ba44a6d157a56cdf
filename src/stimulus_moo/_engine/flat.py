"""Vectors over the parameters in one piece of memory, for small models, whose time goes into calling operations."""

from collections.abc import Sequence

import torch
from torch import Tensor

#: up to this many entries a vector is kept in one piece; large pieces would be given back to the system at every step
MOST = 1 << 20


def can_be_flat(parameters: Sequence[Tensor]) -> bool:
    """Return whether a vector over these parameters fits into one small piece."""
    first = parameters[0]
    return sum(map(Tensor.numel, parameters)) <= MOST and all(
        parameter.dtype is first.dtype and parameter.device == first.device for parameter in parameters
    )


def views(flat: Tensor, parameters: Sequence[Tensor]) -> list[Tensor]:
    """Return the parts of a flat vector in the shapes of the parameters.

    >>> import torch
    >>> [tuple(part.shape) for part in views(torch.zeros(7), [torch.ones(2, 3), torch.ones(1)])]
    [(2, 3), (1,)]
    """
    shapes = [parameter.shape for parameter in parameters]
    parts = torch.split_with_sizes(flat, [shape.numel() for shape in shapes])
    return [part if len(shape) == 1 else part.view(shape) for part, shape in zip(parts, shapes, strict=True)]
