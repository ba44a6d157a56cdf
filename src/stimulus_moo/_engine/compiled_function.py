"""One update of U as a function for torch.compile: both points, all rows or one, and their Gramian."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call, vjp, vmap

from stimulus_moo._engine.flat import views

#: (x_t, x_{t-1} or None, batch, [keep, now, before], U_{t-1} by block or None, lambda or None) to the losses at both
#: points, U_t, its Gramian or squared norm, if all blocks have all rows, and x_t as one vector, if x_{t-1} is one
Function = Callable[..., tuple[Tensor, Tensor | None, list[Tensor], Tensor | None, Tensor | None]]


#: Conditions of a compiled function that torch need not test at every call, since every step looks at the module tree
#: and its hooks anyway, and since torch's own functions do not change.
_TESTED = {"EMPTY_NN_MODULE_HOOKS_DICT", "NOT_PRESENT_IN_GENERIC_DICT"}
_KNOWN = re.compile(r"^(G\['__import_torch|__import__\('torch'|G\['__builtins)|\._(parameters|modules)(\['[^']*'\])?$")


def needed(guards: Sequence[Any]) -> list[bool]:
    """Return which conditions of a compiled function have to be tested: values that the user's Python code uses."""
    return [guard.guard_type not in _TESTED and _KNOWN.search(guard.name) is None for guard in guards]


class Seal:
    """Refuses to trace a function again once it is closed.

    torch.compile traces again where a Python value has changed that the losses use: the new version would not have been
    compared with single rows, and a value that changes at every step would be compiled at every step.
    """

    def __init__(self) -> None:
        self.closed = self.broken = False

    def traced(self) -> bool:
        """Called at tracing only, which takes the result as a constant."""
        self.broken = self.closed
        if self.broken:
            raise RuntimeError("a function that was compiled and compared would have to be compiled again")
        return True


class _Losses(torch.nn.Module):
    """The user's losses as a module, so that its parameters can be replaced for a call."""

    def __init__(self, model: torch.nn.Module, losses: Callable[[Any, Any], Any], loss_names: Sequence[str]) -> None:
        super().__init__()
        self.model = model
        self._losses, self._names = losses, loss_names

    def forward(self, batch: Any) -> Tensor:
        returned = self._losses(self.model, batch)
        if self._names:
            returned = [returned[name] for name in self._names]
        return returned if isinstance(returned, Tensor) else torch.stack(list(returned))


def compile_rows(
    model: torch.nn.Module,
    losses: Callable[[Any, Any], Any],
    names: Sequence[str],
    loss_names: Sequence[str],
    objectives: int,
    layout: Sequence[tuple[list[int], list[int]]],
    decisive: Sequence[bool],
    seal: Seal,
    backend: str,
) -> Function:
    """Return U_t = keep U_{t-1} + now J(x_t) + before J(x_{t-1}) as a function; the first call compiles it.

    J is the matrix of S gradients, or the one gradient of lambda . F, as vectors, if lambda is given. ``layout`` has
    for each block its objectives, and the parameters whose gradients are its columns. x_{t-1} may be one flat vector.
    ``seal``, once it is closed, refuses further compilations.
    """
    wrapped = _Losses(model, losses, loss_names)
    keys = [f"model.{name}" for name in names]
    traced = torch.compiler.assume_constant_result(lambda: seal.traced())

    def jacobian(parameters: Sequence[Tensor], batch: Any, weights: Tensor | None) -> tuple[Tensor, list[Tensor]]:
        def values(point: Sequence[Tensor]) -> Tensor:
            found: Tensor = functional_call(wrapped, dict(zip(keys, point, strict=True)), (batch,))
            return found

        found, pull = vjp(values, tuple(parameters))  # type: ignore[misc]
        if weights is None:
            (gradients,) = vmap(pull)(torch.eye(objectives, dtype=found.dtype, device=found.device))
        else:
            (gradients,) = pull(weights.to(found))
        return found, [block(gradients, rows, members, weights is None) for rows, members in layout]

    def block(gradients: Sequence[Tensor], rows: list[int], members: list[int], several: bool) -> Tensor:
        if not several:
            return torch.cat([gradients[i].reshape(-1) for i in members])
        flat = torch.cat([gradients[i].reshape(objectives, -1) for i in members], dim=1)
        return flat if len(rows) == objectives else flat[rows]

    def products(blocks: Sequence[Tensor], several: bool) -> Tensor | None:
        """Return the Gramian over the parameters that decide the weights, or the squared norm of one row."""
        if not several:
            return torch.stack([block.double().square().sum() for block in blocks]).sum()
        if any(len(rows) != objectives for rows, _ in layout):
            return None
        wide = [block.double() for block, (_, members) in zip(blocks, layout, strict=True) if decisive[members[0]]]
        return torch.stack([block @ block.T for block in wide]).sum(0)

    def update(
        parameters: Sequence[Tensor],
        previous: Sequence[Tensor] | Tensor | None,
        batch: Any,
        factors: Tensor,
        rows: Sequence[Tensor] | None,
        weights: Tensor | None,
    ) -> tuple[Tensor, Tensor | None, list[Tensor], Tensor | None, Tensor | None]:
        traced()
        keep, now, before = factors.unbind()
        found, blocks = jacobian(parameters, batch, weights)
        earlier = here = None
        blocks = [block * now for block in blocks]
        if previous is not None:
            point: Sequence[Tensor] = previous if not isinstance(previous, Tensor) else views(previous, parameters)
            if isinstance(previous, Tensor):
                here = torch.cat([x.reshape(-1) for x in parameters])
            earlier, others = jacobian(point, batch, weights)
            blocks = [a + b * before for a, b in zip(blocks, others, strict=True)]
        if rows is not None:
            blocks = [a + b * keep for a, b in zip(blocks, rows, strict=True)]
        return found, earlier, blocks, products(blocks, weights is None), here

    # torch.compile keeps at most a few versions of one code object, and every model would bring one of this
    own = FunctionType(update.__code__.replace(), update.__globals__, update.__name__, None, update.__closure__)
    # a step of a small model is shorter than the Python that inductor would wrap its kernels in
    options: dict[str, Any] = {"guard_filter_fn": needed}
    if backend == "inductor":
        options["cpp_wrapper"] = True
    # dynamic=False would set and reset options of the compiler at every call; the seal allows no second shape anyway
    return torch.compile(own, fullgraph=True, backend=backend, options=options)
