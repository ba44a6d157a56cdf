"""Both points and all rows in one compiled function: no Python and few operations in a step of a small model."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call, vjp, vmap
from torch.utils._pytree import tree_flatten

#: what an update returns: losses at x_t, losses at x_{t-1} or None, U_t by block
Found = tuple[Tensor, Tensor | None, list[Tensor]]

#: from x_t, x_{t-1} or None, batch, [keep, now, before], U_{t-1} by block or None
Function = Callable[[Sequence[Tensor], Sequence[Tensor] | None, Any, Tensor, Sequence[Tensor] | None], Found]

#: per block of rows: its objectives, and the parameters whose gradients are its columns
Layout = Sequence[tuple[list[int], list[int]]]


@dataclass(frozen=True)
class CompiledRows:
    """A compiled update that has been seen to agree with single rows, and what it reaches."""

    function: Function
    reach: list[int]


class _Losses(torch.nn.Module):
    """The user's losses as a module, so that its parameters can be replaced for a call."""

    def __init__(self, model: torch.nn.Module, losses: Callable[[Any, Any], Any]) -> None:
        super().__init__()
        self.model = model
        self._losses = losses

    def forward(self, batch: Any) -> Tensor:
        """Return the S losses as one tensor."""
        returned = self._losses(self.model, batch)
        return returned if isinstance(returned, Tensor) else torch.stack(list(returned))


def compile_rows(
    model: torch.nn.Module,
    losses: Callable[[Any, Any], Any],
    names: Sequence[str],
    objectives: int,
    layout: Layout,
    backend: str,
) -> Function:
    """Return U_t = keep U_{t-1} + now J(x_t) + before J(x_{t-1}) as a function; the first call compiles it."""
    wrapped = _Losses(model, losses)
    keys = [f"model.{name}" for name in names]

    def jacobian(parameters: Sequence[Tensor], batch: Any) -> tuple[Tensor, list[Tensor]]:
        def values(point: Sequence[Tensor]) -> Tensor:
            found: Tensor = functional_call(wrapped, dict(zip(keys, point, strict=True)), (batch,))
            return found

        found, pull = vjp(values, tuple(parameters))  # type: ignore[misc]
        (gradients,) = vmap(pull)(torch.eye(objectives, dtype=found.dtype, device=found.device))
        blocks = []
        for rows, members in layout:
            flat = torch.cat([gradients[i].reshape(objectives, -1) for i in members], dim=1)
            blocks.append(flat if len(rows) == objectives else flat[rows])
        return found, blocks

    def update(
        parameters: Sequence[Tensor],
        previous: Sequence[Tensor] | None,
        batch: Any,
        weights: Tensor,
        rows: Sequence[Tensor] | None,
    ) -> Found:
        keep, now, before = weights.unbind()
        found, blocks = jacobian(parameters, batch)
        earlier = None
        blocks = [block * now for block in blocks]
        if previous is not None:
            earlier, others = jacobian(previous, batch)
            blocks = [a + b * before for a, b in zip(blocks, others, strict=True)]
        if rows is not None:
            blocks = [a + b * keep for a, b in zip(blocks, rows, strict=True)]
        return found, earlier, blocks

    # torch.compile keeps at most a few versions of one code object, and every model would bring one of this
    own = FunctionType(update.__code__.replace(), update.__globals__, update.__name__, None, update.__closure__)
    # a step of a small model is shorter than the Python that inductor would wrap its kernels in
    options: dict[str, Any] | None = {"cpp_wrapper": True} if backend == "inductor" else None
    return torch.compile(own, fullgraph=True, dynamic=False, backend=backend, options=options)


def kind_of(batch: Any, model: torch.nn.Module) -> tuple[Any, ...] | None:
    """Return what a compiled function is specialised on, or None where a batch cannot be told from others."""
    leaves, structure = tree_flatten(batch)
    described: list[Any] = []
    for leaf in leaves:
        if isinstance(leaf, Tensor):
            described.append((leaf.shape, leaf.dtype, leaf.device, leaf.layout))
        elif isinstance(leaf, int | float | str | bytes | bool | None):
            described.append(leaf)
        else:
            return None
    return (structure, *described, *(module.training for module in model.modules()))


def call_quietly(function: Function, *arguments: Any) -> Found:
    """Call without the compiler's warnings, which are about itself and not about the user's code."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return function(*arguments)
