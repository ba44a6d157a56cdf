"""One backward pass per objective through one shared graph: works with everything."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from torch.utils.hooks import RemovableHandle

from stimulus_moo._engine.interrupts import complete


class Accumulator(Protocol):
    """Where gradients go: whole rows, single parameters of a row, or all rows at once."""

    close: Callable[[], None] | None  # what an engine owes if a signal kept it from tidying up

    def take_row(self, objective: int, gradients: Sequence[Tensor | None]) -> None:
        """Take one objective's gradients, one per parameter or None."""

    def take_one(self, objective: int, i: int, gradient: Tensor) -> None:
        """Take one objective's gradient for parameter i."""

    def end_row(self, objective: int) -> None:
        """Know that an objective's gradients have all been given by ``take_one``."""

    def take_all(self, gradients: Sequence[Tensor | None]) -> None:
        """Take every objective's gradients: one tensor [S, *shape] per parameter, or None."""


def rowwise(losses: Sequence[Tensor], parameters: Sequence[Tensor], intake: Accumulator) -> None:
    """Give the intake one row after the other; the graph is freed with the last one."""
    last = len(losses) - 1
    for objective, loss in enumerate(losses):
        gradients = torch.autograd.grad(loss, parameters, retain_graph=objective < last, allow_unused=True)
        intake.take_row(objective, [None if gradient is None else dense(gradient) for gradient in gradients])


def streamed(losses: Sequence[Tensor], parameters: Sequence[Tensor], intake: Accumulator) -> None:
    """Give the intake every gradient as soon as it exists, so that no row is ever held; ``p.grad`` stays as it was.

    A gradient that has just been written is still in the processor's cache: on large models taking it there and then is
    much faster than collecting the row first.
    """
    last = len(losses) - 1
    now = 0

    def receive(i: int, parameter: Tensor) -> None:
        gradient, parameter.grad = parameter.grad, None
        assert gradient is not None
        with torch.no_grad():
            intake.take_one(now, i, dense(gradient))

    def put_back() -> None:
        for hook in hooks:
            hook.remove()
        for parameter, gradient in zip(parameters, kept, strict=True):
            parameter.grad = gradient

    kept = [parameter.grad for parameter in parameters]
    hooks: list[RemovableHandle] = []
    intake.close = put_back
    try:
        for i, parameter in enumerate(parameters):
            parameter.grad = None
            hooks.append(parameter.register_post_accumulate_grad_hook(partial(receive, i)))
        for now, loss in enumerate(losses):
            torch.autograd.backward(loss, retain_graph=now < last, inputs=list(parameters))
            intake.end_row(now)
    finally:
        complete(put_back)


def can_stream(model: torch.nn.Module, parameters: Sequence[Tensor]) -> bool:
    """Tell whether nobody else listens for finished gradients: the user's hooks, or DistributedDataParallel."""
    return not any(getattr(parameter, "_post_accumulate_grad_hooks", None) for parameter in parameters) and not any(
        isinstance(module, DistributedDataParallel) for module in model.modules()
    )


def dense(gradient: Tensor) -> Tensor:
    """Return a gradient as a dense tensor."""
    return gradient if gradient.layout is torch.strided else gradient.to_dense()
