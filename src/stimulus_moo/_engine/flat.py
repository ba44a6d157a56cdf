"""Vectors over the parameters in one piece of memory, for small models, whose time goes into calling operations."""

import sys
from collections.abc import Sequence

import torch
from torch import Tensor

from stimulus_moo._engine.memory_users import users_of

#: up to this many entries a vector is kept in one piece; large pieces would be given back to the system at every step
MOST = 1 << 20


def can_be_flat(parameters: Sequence[Tensor]) -> bool:
    """Return whether a vector over these parameters fits into one small piece."""
    small = sum(map(Tensor.numel, parameters)) <= MOST
    return small and of_one_kind(parameters) and all(map(Tensor.numel, parameters))


def of_one_kind(parameters: Sequence[Tensor]) -> bool:
    """Return whether all parameters are of one type and on one device."""
    first = parameters[0]
    return all(parameter.dtype is first.dtype and parameter.device == first.device for parameter in parameters)


def views(flat: Tensor, parameters: Sequence[Tensor]) -> list[Tensor]:
    """Return the parts of a flat vector in the shapes of the parameters.

    >>> import torch
    >>> [tuple(part.shape) for part in views(torch.zeros(7), [torch.ones(2, 3), torch.ones(1)])]
    [(2, 3), (1,)]
    """
    return list(torch._C._nn.unflatten_dense_tensors(flat, list(parameters)))


class Gradients:
    """``p.grad`` of all parameters in one piece of memory, which the next step uses again.

    Cutting a vector into the parameters' shapes takes longer than copying it. The memory is used again only if every
    ``p.grad`` still is the tensor of the last step, and nobody else refers to one of them or to its memory.
    """

    def __init__(self, flat: Tensor, parameters: Sequence[Tensor]) -> None:
        self._flat = flat.clone()
        self._views = views(self._flat, parameters)
        for parameter, view in zip(parameters, self._views, strict=True):
            parameter.grad = view
        self._references = self._count()

    def write(self, flat: Tensor, parameters: Sequence[Tensor]) -> bool:
        """Write a vector into every ``p.grad``; return False, with nothing done, if new memory is needed."""
        for parameter, view in zip(parameters, self._views, strict=True):
            if parameter.grad is not view:
                return False
        if self._references[0] is None or self._count() != self._references:
            return False
        self._flat.copy_(flat)
        return True

    def _count(self) -> list[int | None]:
        """Return how many tensors use the memory, and how many references there are to each gradient."""
        return [users_of(self._flat), *map(sys.getrefcount, self._views)]


def overwritten(parameter: Tensor, value: Tensor) -> bool:
    """Copy a value into the memory of ``p.grad``; return False, with nothing done, if that is not ours alone.

    Fresh memory of this size would come from the system, page by page.
    """
    old = parameter.grad
    if old is None or old.shape != value.shape or old.stride() != value.stride() or old.dtype != value.dtype:
        return False
    if type(old) is not Tensor or old.requires_grad or not old.is_cpu:
        return False
    alone = sys.getrefcount(old) == _ALONE and users_of(old) == 1
    if alone:
        old.copy_(value)
    return alone


def _references_of_one() -> int:
    """Return the count of references to a gradient that only its parameter and one variable refer to."""
    parameter = torch.zeros(1, requires_grad=True)
    parameter.grad = torch.zeros(1)
    old = parameter.grad
    return sys.getrefcount(old)


_ALONE = _references_of_one()
