"""Differentiates S losses: one backward pass per objective, one vectorised pass for all, or gradient by gradient."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd
from torch.nn.parallel import DistributedDataParallel
from torch.utils.hooks import RemovableHandle

from stimulus_moo._engine.graphs import half_attention
from stimulus_moo._engine.hooks import find_python
from stimulus_moo._engine.interrupts import DeferredInterrupts
from stimulus_moo._engine.nonfinite import all_finite
from stimulus_moo._engine.placement import WHOLE, Placement
from stimulus_moo.data.partition import ALL
from stimulus_moo.errors import StimulusWarning

if TYPE_CHECKING:
    from stimulus_moo._engine.accumulator import Accumulator

logger = logging.getLogger("stimulus_moo")

#: Engine names a user may ask for. "auto" is resolved to "rowwise" or "batched" at the first step.
ENGINES = ("auto", "rowwise", "batched", "compiled")

#: Up to this many entries of U (S x P) one vectorised pass is faster than S single ones (benchmarks/engines.py). It
#: pays for small models, whose time goes into calling operations; with two objectives there is little to gain, and
#: convolutions and recurrent layers gain little or lose at any size.
BATCHED_OBJECTIVES = 3
BATCHED_ENTRIES = 1 << 22

#: A step on the one loss of kept weights is compiled without being asked for if the model has at most this many
#: parameters, none in convolutions or recurrent layers, and the run is known to have at least so many steps, by the
#: number of points that a step evaluates (benchmarks/engines.py).
COMPILED_PARAMETERS = 1 << 14
COMPILED_STEPS = {1: 40_000, 2: 15_000}

HOOKED = "hooks are registered while its losses are evaluated"


class Jacobian(NamedTuple):
    """The gradients of S losses, one per parameter or None: in S rows, or stacked [S, *shape]."""

    rows: Sequence[Sequence[Tensor | None]] = ()
    stacked: Sequence[Tensor | None] | None = None
    present: int = -1  # bit mask of the losses that were differentiated; the rows of others are None or 0


class Engine:
    """Differentiates S losses with the engine asked for; falls back to ``rowwise``, with one notice, where it fails."""

    def __init__(self, name: str, model: nn.Module, placement: Placement = WHOLE) -> None:
        self.name = name
        self.model, self.placement = model, placement
        self._chosen = name == "auto"  # by the rule, not by the user
        self._first = True  # is this the first graph that is looked at?
        self.expected_steps = 0  # how many steps the run has at least, as far as it is known
        self._compiles: dict[int, bool] = {}  # by points: is the step on one loss compiled?
        self.uncompiled = False  # did the last step on a batch run uncompiled, although it was to be compiled?
        self._listened = any(isinstance(module, DistributedDataParallel) for module in model.modules())
        if placement.rowwise_only is not None:
            self._listened, self._compiles = True, {1: False, 2: False}
            if name != "rowwise":
                self.give_up(placement.rowwise_only)

    @property
    def in_use(self) -> str:
        """The engine of the last step; an uncompiled step of the compiled engine computes single rows."""
        return "rowwise" if self.name == "compiled" and self.uncompiled else self.name

    def jacobian(
        self, losses: Sequence[Tensor | None], parameters: Sequence[Tensor], *, hooked: bool = False
    ) -> Jacobian:
        """Return the gradients of all losses but None, for a model small enough to hold all rows at once.

        ``hooked`` says that hooks were registered while the losses were evaluated, so that their graph may have some.
        """
        with full_precision({parameter.device for parameter in parameters}):
            stacked = self._stacked(losses, parameters, hooked)
            rows = list(rowwise(losses, parameters, self.placement)) if stacked is None else ()
            return Jacobian(rows, stacked, mask_of(losses))

    def stream(
        self, losses: Sequence[Tensor | None], parameters: Sequence[Tensor], sink: Accumulator, *, hooked: bool = False
    ) -> None:
        """Give the sink the gradients of all losses but None, for a model whose rows must not be held twice."""
        with full_precision({parameter.device for parameter in parameters}):
            stacked = self._stacked(losses, parameters, hooked)
            if stacked is not None:
                sink.take_stacked(stacked, mask_of(losses))
            elif sink.rows.partition == ALL and self.accumulates(parameters):
                stream(losses, parameters, sink)
            else:
                for objective, row in enumerate(rowwise(losses, parameters, self.placement)):
                    if losses[objective] is None:
                        sink.skip_row(objective)
                    else:
                        sink.take_row(objective, row)

    def accumulates(self, parameters: Sequence[Tensor]) -> bool:
        """Return whether gradients may pass through ``p.grad``: nobody else listens for finished ones.

        Listeners are hooks of the user, and DistributedDataParallel.
        """
        return not self._listened and not any(
            getattr(parameter, "_post_accumulate_grad_hooks", None) for parameter in parameters
        )

    def resume(self, name: str) -> None:
        """Go on as the engine of a saved state did, if the choice was left to the rule; a choice by name stays."""
        if self._chosen and name != "compiled":
            self.name = name

    def compiles(self, parameters: Sequence[Tensor], points: int, *, weighted: bool) -> bool:
        """Return whether a step is compiled: on request, or on one loss if the run is long enough to pay for it."""
        if self.name == "compiled" or not weighted or not self._chosen:
            return self.name == "compiled"
        if points not in self._compiles:
            small = sum(map(Tensor.numel, parameters)) <= COMPILED_PARAMETERS and not heavy(self.model)
            self._compiles[points] = small and self.expected_steps >= COMPILED_STEPS[points]
        return self._compiles[points]

    def give_up_compiling(self, reason: str) -> None:
        """Do without compiled steps, and say why."""
        if self.name == "compiled":
            self.give_up(reason)
        else:
            self._compiles = {1: False, 2: False}
            logger.info("steps on one loss are not compiled: %s", reason)

    def give_up(self, reason: str) -> None:
        """Switch to single rows and say why: a warning if the user asked for this engine, else a log entry."""
        message = (
            f"engine {self.name!r} does not work for this model: {reason}. Continuing with engine 'rowwise', which "
            "gives the same results"
        )
        if self._chosen:
            logger.info(message)
        else:
            warnings.warn(message, StimulusWarning, stacklevel=2)
        self.name = "rowwise"

    def refuses(self, losses: Sequence[Tensor], parameters: Sequence[Tensor], hooked: bool) -> bool:
        """Give up, and return True, where the backward pass runs Python code.

        Vectorised, that code would get tensors that are no plain ones, and reading their ``.data`` ends the process.
        """
        found = find_python(losses, parameters, saved=self._first) or (HOOKED if hooked else None)
        self._first = False
        if found is not None:
            self.give_up(f"{found}, and Python code in a backward pass needs plain tensors")
        return found is not None

    def _stacked(
        self, losses: Sequence[Tensor | None], parameters: Sequence[Tensor], hooked: bool
    ) -> list[Tensor | None] | None:
        """Return the gradients from one vectorised pass; None where single rows are to be computed."""
        if self.name == "auto":
            self.name = choose(self.model, parameters, len(losses))
            if self.name == "batched" and half_attention([loss for loss in losses if loss is not None]):
                self.name = "rowwise"
            logger.debug("engine %s chosen for %d objectives", self.name, len(losses))
        if self.name != "batched":
            return None
        present = [loss for loss in losses if loss is not None]
        if not present or self.refuses(present, parameters, hooked):
            return None
        try:
            gradients = batched(present, parameters)
        except RuntimeError as error:
            self.give_up(f"its gradients cannot be vectorised ({str(error).splitlines()[0]})")
            return None
        if not all_finite([gradient for gradient in gradients if gradient is not None]):
            return None  # 0 times infinity also spoils the other rows: single rows tell which one it is
        return gradients if len(present) == len(losses) else spread(gradients, losses)


def choose(model: nn.Module, parameters: Sequence[Tensor], objectives: int) -> str:
    """Return the engine that is fastest on problems of this kind; equal problems get equal answers."""
    entries = objectives * sum(parameter.numel() for parameter in parameters)
    if objectives < BATCHED_OBJECTIVES or entries > BATCHED_ENTRIES:
        return "rowwise"
    return "rowwise" if heavy(model) else "batched"


def heavy(model: nn.Module) -> bool:
    """Return whether a model has convolutions or recurrent layers, whose time does not go into calling operations."""
    return any(isinstance(module, _ConvNd | nn.RNNBase) for module in model.modules())


def mask_of(losses: Sequence[Tensor | None]) -> int:
    """Return the bit mask of the losses that are not None; -1 where all are there."""
    absent = [s for s, loss in enumerate(losses) if loss is None]
    return -1 if not absent else (1 << len(losses)) - 1 - sum(1 << s for s in absent)


def last_of(losses: Sequence[Tensor | None]) -> int:
    """Return the number of the last loss that is not None, with which the graph is freed; -1 where all are None."""
    return max((s for s, loss in enumerate(losses) if loss is not None), default=-1)


def spread(gradients: Sequence[Tensor | None], losses: Sequence[Tensor | None]) -> list[Tensor | None]:
    """Return stacked gradients with zeros for the losses that are None."""
    index = [s for s, loss in enumerate(losses) if loss is not None]
    found: list[Tensor | None] = []
    for gradient in gradients:
        if gradient is None:
            found.append(None)
        else:
            whole = gradient.new_zeros(len(losses), *gradient.shape[1:])
            whole[index] = gradient
            found.append(whole)
    return found


def rowwise(
    losses: Sequence[Tensor | None], parameters: Sequence[Tensor], placement: Placement = WHOLE
) -> Iterator[list[Tensor | None]]:
    """Yield one row after the other, of None for losses that are None; the graph is freed with the last one.

    Works with every model.
    """
    last = last_of(losses)
    for objective, loss in enumerate(losses):
        if loss is None:
            yield [None] * len(parameters)
            continue
        gradients = placement.gradients(loss, parameters, retain_graph=objective < last)
        yield [None if gradient is None else dense(gradient) for gradient in gradients]


def batched(losses: Sequence[Tensor], parameters: Sequence[Tensor]) -> list[Tensor | None]:
    """Return every objective's gradients as [S, *shape] per parameter, or None where no loss reaches it.

    All rows come from one vectorised pass, or RuntimeError if that is impossible; the graph is kept for single rows.
    """
    with torch.enable_grad():
        stacked = torch.stack(list(losses))
    directions = torch.eye(len(losses), dtype=stacked.dtype, device=stacked.device)
    gradients = torch.autograd.grad(
        stacked, parameters, directions, is_grads_batched=True, allow_unused=True, retain_graph=True
    )
    return [None if gradient is None else dense(gradient) for gradient in gradients]


def stream(losses: Sequence[Tensor | None], parameters: Sequence[Tensor], sink: Accumulator) -> None:
    """Give the sink every gradient as soon as it exists, so that no whole row is held; ``p.grad`` stays as it was.

    A gradient that was just written is still in the processor's cache. On large models, adding it immediately is much
    faster than collecting the row first.
    """
    last, now = last_of(losses), 0

    def receive(i: int, parameter: Tensor) -> None:
        gradient, parameter.grad = parameter.grad, None
        assert gradient is not None
        with torch.no_grad():
            sink.take_one(now, i, dense(gradient))

    def clean_up() -> None:
        for hook in hooks:
            hook.remove()
        for parameter, gradient in zip(parameters, kept, strict=True):
            parameter.grad = gradient

    kept = [parameter.grad for parameter in parameters]
    hooks: list[RemovableHandle] = []
    sink.close = clean_up
    try:
        for i, parameter in enumerate(parameters):
            parameter.grad = None
            hooks.append(parameter.register_post_accumulate_grad_hook(partial(receive, i)))
        for now, loss in enumerate(losses):
            if loss is None:
                sink.skip_row(now)
                continue
            torch.autograd.backward(loss, retain_graph=now < last, inputs=list(parameters))
            sink.end_row(now)
    finally:
        with DeferredInterrupts():
            clean_up()


def times(loss: Tensor, factor: float) -> Tensor:
    """Return a loss multiplied by a number, with its graph."""
    with torch.enable_grad():
        return loss * factor


def dense(gradient: Tensor) -> Tensor:
    return gradient if gradient.layout is torch.strided else gradient.to_dense()


def autocasts(devices: Iterable[torch.device]) -> list[str]:
    """Return the device types, among these and the CPU, for which the user's autocast is on."""
    if not torch._C._is_any_autocast_enabled():
        return []
    kinds = {"cpu", *(device.type for device in devices)}
    return [kind for kind in kinds if torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)]


def full_precision(devices: Iterable[torch.device]) -> AbstractContextManager[Any]:
    """Switch the user's autocast off for the library's own arithmetic."""
    kinds = autocasts(devices)
    if not kinds:
        return nullcontext()
    stack = ExitStack()
    for kind in kinds:
        stack.enter_context(torch.autocast(kind, enabled=False))
    return stack
