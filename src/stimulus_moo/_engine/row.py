"""One row over the model's parameters, a tensor for each, as plain training keeps ``p.grad``."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from stimulus_moo._engine.interrupts import DeferredInterrupts
from stimulus_moo._engine.norms import distance, sq_norm_of


class Row:
    """The estimate of the gradient of the one loss lambda . F.

    It has the methods of ``Rows`` for a single row. Its tensors are those in which autograd has summed up the gradient,
    so a step under kept weights copies nothing that plain training would not copy.
    """

    objectives = 1
    staged = True  # updates are built beside it: a failed one leaves it as it was

    def __init__(
        self,
        parameters: Sequence[Tensor],
        parts: Sequence[Tensor | None] | None = None,
        room: Sequence[int] | None = None,
    ) -> None:
        self.parameters = parameters
        self.parts: list[Tensor | None] = [None] * len(parameters) if parts is None else list(parts)
        self._room = [0] * len(parameters) if room is None else room  # the parameters that are expected to be reached
        self.close: Callable[[], None] | None = None  # cleanup callback, run if a backward pass was interrupted

    @property
    def reach(self) -> list[int]:
        """For each parameter 1 if it was reached, else 0."""
        return [int(part is not None) for part in self.parts]

    @property
    def layout(self) -> list[int]:
        """For each parameter 1 if it was or is expected to be reached, else 0."""
        return [int(part is not None or room) for part, room in zip(self.parts, self._room, strict=True)]

    def expect(self, masks: Callable[[], list[int]]) -> None:
        """Memory comes with the gradients."""

    def accumulate(self, loss: Tensor, weight: float) -> None:
        """Add ``weight`` times the gradient of a loss, as plain training adds to ``p.grad``, which stays as it was."""
        parameters = self.parameters
        kept = [parameter.grad for parameter in parameters]

        def clean_up() -> None:
            for parameter, gradient in zip(parameters, kept, strict=True):
                parameter.grad = gradient

        self.close = clean_up
        try:
            for parameter, part in zip(parameters, self.parts, strict=True):
                parameter.grad = part
            torch.autograd.backward(loss, torch.full_like(loss, weight), inputs=list(parameters))
            self.parts = [_dense(parameter.grad) for parameter in parameters]
        finally:
            with DeferredInterrupts():
                clean_up()

    def add(self, objective: int, gradients: Sequence[Tensor | None], weight: float) -> None:
        """Add ``weight`` times the gradients, one per parameter or None."""
        self.merge(Row(self.parameters, gradients), weight)

    def merge(self, other: Row, weight: float) -> None:
        """Add ``weight`` times another row."""
        pairs = []
        for i, (mine, theirs) in enumerate(zip(self.parts, other.parts, strict=True)):
            if mine is None:
                self.parts[i] = None if theirs is None else theirs * weight
            elif theirs is not None:
                pairs.append((mine, theirs))
        if pairs:
            torch._foreach_add_([mine for mine, _ in pairs], [theirs for _, theirs in pairs], alpha=weight)

    def scale(self, factor: float) -> None:
        torch._foreach_mul_([part for part in self.parts if part is not None], factor)

    def settle(self) -> None:
        """No entries are left out."""

    def replace(self, reach: Sequence[int], matrices: Sequence[Tensor]) -> None:
        """Take one matrix for each parameter that there is room for, and keep those that were reached."""
        found = iter(matrices)
        pairs = list(zip(self.parameters, self.layout, reach, strict=True))
        taken = [next(found).view(parameter.shape) if room else None for parameter, room, _ in pairs]
        self.parts = [part if reached else None for part, (*_, reached) in zip(taken, pairs, strict=True)]

    def make_room(self, layout: Sequence[int]) -> None:
        """Note which parameters are expected to be reached."""
        self._room = [int(old or new) for old, new in zip(self._room, layout, strict=True)]

    def blocks_cut(self) -> list[tuple[list[int], list[int]]]:
        """Return for each block its rows and its parameters: a reached parameter is a block."""
        return [([0], [i]) for i, reached in enumerate(self.layout) if reached]

    def matrices(self) -> list[Tensor]:
        """Return the parts of the reached parameters as rows of length one."""
        return [part.reshape(1, -1) for part in self.parts if part is not None]

    def combine(self, weights: Tensor) -> tuple[list[Tensor | None], float]:
        """Return the row itself, since lambda is in it already, and its squared norm."""
        return list(self.parts), sq_norm_of([part for part in self.parts if part is not None])

    mix = combine

    def distance(self, other: Row, weights: Tensor) -> float:
        """Return the norm of the difference to another row."""
        pairs = [(a, b) for a, b in zip(self.parts, other.parts, strict=True) if a is not None and b is not None]
        return distance([a for a, _ in pairs], [b for _, b in pairs])

    def row(self, objective: int) -> dict[int, Tensor]:
        """Return the reached parts by parameter index."""
        return {i: part for i, part in enumerate(self.parts) if part is not None}

    def load(self, objective: int, parts: Sequence[Tensor | None]) -> None:
        """Set the row, one part per parameter or None."""
        pairs = zip(self.parameters, parts, strict=True)
        self.parts = [None if part is None else torch.empty_like(p).copy_(part) for p, part in pairs]

    def copied(self) -> Row:
        """Return a copy with memory of its own."""
        return Row(self.parameters, [None if part is None else part.clone() for part in self.parts])


def _dense(gradient: Tensor | None) -> Tensor | None:
    return gradient if gradient is None or gradient.layout is torch.strided else gradient.to_dense()
