"""Evaluation at x_{t-1}: the parameters hold other values, in place, for the duration of a context."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from stimulus_moo._engine.interrupts import DeferredInterrupts

_SMALL = 1 << 20  # up to this many entries the current values are copied aside instead of exchanged


class ParameterSwap:
    """Put other values into the parameters, in place, while the context is open.

    If a signal arrives after the body and before the exit, the parameters still hold the other values; whoever handles
    the exception calls ``back``, which is idempotent. Up to 2^20 entries the parameters' own values are copied aside.
    Above, they are exchanged with the other values, with signals deferred, so that no third copy exists.
    """

    def __init__(self, parameters: Sequence[Tensor], others: Sequence[Tensor]) -> None:
        self._parameters, self._others = parameters, others
        self._large = sum(parameter.numel() for parameter in parameters) > _SMALL
        self._kept: list[Tensor] = []
        self._swapped = False

    def __enter__(self) -> None:
        try:
            if self._large:
                self._exchange(swapped=True)
            else:
                self._kept = [parameter.detach().clone() for parameter in self._parameters]
                self._swapped = True
                self._copy(self._others)
        except BaseException:
            self.back()
            raise

    def __exit__(self, *_: object) -> None:
        self.back()

    def back(self) -> None:
        """Restore the parameters' own values, if they are swapped out."""
        if not self._swapped:
            return
        if self._large:
            self._exchange(swapped=False)
        else:
            self._copy(self._kept)
            self._swapped = False
        torch.clear_autocast_cache()  # it may hold low-precision copies of the other values

    def _copy(self, values: Sequence[Tensor]) -> None:
        with torch.no_grad():
            torch._foreach_copy_(list(self._parameters), list(values))

    def _exchange(self, *, swapped: bool) -> None:
        with DeferredInterrupts(), torch.no_grad():
            for parameter, other in zip(self._parameters, self._others, strict=True):
                values = parameter.clone()
                parameter.copy_(other)
                other.copy_(values)
            self._swapped = swapped
