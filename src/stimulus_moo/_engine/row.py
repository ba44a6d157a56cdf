"""One row over the model's parameters, a tensor for each, as plain training keeps ``p.grad``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial

import torch
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from stimulus_moo._engine.differentiation import full_precision
from stimulus_moo._engine.flat import views
from stimulus_moo._engine.interrupts import DeferredInterrupts
from stimulus_moo._engine.nonfinite import all_finite
from stimulus_moo._engine.norms import distance, is_long, known_squares, sq_norm_of, squares_of

#: above this many entries the parts of a row do not stay in the processor's cache until all are there
LARGE = 1 << 20


class Row:
    """The estimate of the gradient of the one loss lambda . F.

    It has the methods of ``Rows`` for a single row. Its tensors are those in which autograd has summed up the gradient,
    so a step under kept weights copies nothing that plain training would not copy.
    """

    objectives = 1
    weighted = True
    staged = True  # updates are built beside it: a failed one leaves it as it was

    def __init__(
        self,
        parameters: Sequence[Tensor],
        parts: Sequence[Tensor | None] | None = None,
        room: Sequence[int] | None = None,
    ) -> None:
        self.parameters = parameters
        self._parts: list[Tensor | None] | None = [None] * len(parameters) if parts is None else list(parts)
        self._reached: Sequence[int] = ()  # of the parts of ``_flats``, while there are no ``_parts``
        #: for each parameter 1 if it was or is expected to be reached, else 0
        self.layout = self.reach if room is None else list(room)
        self._sq_norm: float | None = None  # if it is known already
        self._flats: list[Tensor] = []  # the memory of the parts, where it is one piece for each block
        self._members: list[list[int]] = []  # the parameters of each block
        self.close: Callable[[], None] | None = None  # cleanup callback, run if a backward pass was interrupted

    @property
    def parts(self) -> list[Tensor | None]:
        """The row, a tensor for each parameter that was reached."""
        if self._parts is None:
            self._parts = self._cut(self._flats, self._reached)
        return self._parts

    @parts.setter
    def parts(self, parts: list[Tensor | None]) -> None:
        self._parts, self._sq_norm = parts, None

    @property
    def reach(self) -> list[int]:
        """For each parameter 1 if it was reached, else 0."""
        return list(self._reached) if self._parts is None else [int(part is not None) for part in self._parts]

    def expect(self, masks: Callable[[], list[int]]) -> None:
        """Memory comes with the gradients."""

    def begin(self) -> None:
        """Become empty; the memory comes with the gradients."""
        self.parts, self._flats = [None] * len(self.parameters), []

    def accumulate(
        self,
        loss: Tensor,
        weight: float,
        old: Row | None = None,
        keep: float = 0.0,
        *,
        last: bool = False,
        take: Callable[[int, Tensor], None] | None = None,
    ) -> None:
        """Add ``weight`` times the gradient of a loss, as plain training adds to ``p.grad``, which stays as it was.

        Then add ``keep`` times the old row, if there is one. ``last`` says that nothing more will be added in this
        step: each large part is then finished, and its norm taken, while it is in the processor's cache. ``take`` gets
        each parameter's index and gradient as soon as it is complete.
        """
        parameters, kept = self.parameters, [parameter.grad for parameter in self.parameters]
        earlier = [None] * len(parameters) if old is None else old.parts
        hooks: list[RemovableHandle] = []
        squares: dict[int, list[Tensor]] = {}  # of the pieces of each part that is finished

        def finish(i: int, parameter: Tensor) -> None:
            part, other = parameter.grad, earlier[i]
            if part is not None and part.is_contiguous():  # nothing is recorded in a backward pass
                squares[i] = squares_of(part if other is None else part.add_(other, alpha=keep))

        def give(i: int, parameter: Tensor) -> None:
            if take is not None and parameter.grad is not None and parameter.grad.layout is torch.strided:
                with torch.no_grad():
                    take(i, parameter.grad)

        def clean_up() -> None:
            for hook in hooks:
                hook.remove()
            for parameter, gradient in zip(parameters, kept, strict=True):
                parameter.grad = gradient

        self.close, self._flats = clean_up, []
        large = last and sum(map(Tensor.numel, parameters)) > LARGE
        try:
            for i, (parameter, part) in enumerate(zip(parameters, self.parts, strict=True)):
                parameter.grad = part
                if large and is_long(parameter):
                    hooks.append(parameter.register_post_accumulate_grad_hook(partial(finish, i)))
                if take is not None:
                    hooks.append(parameter.register_post_accumulate_grad_hook(partial(give, i)))
            with full_precision({loss.device}):
                torch.autograd.backward(loss, torch.full_like(loss, weight), inputs=list(parameters))
            self.parts = [_dense(parameter.grad) for parameter in parameters]
            self.make_room(self.reach)
        finally:
            with DeferredInterrupts():
                clean_up()
                self.close = None
        self._complete(earlier, keep, squares)

    def _complete(self, earlier: Sequence[Tensor | None], keep: float, squares: dict[int, list[Tensor]]) -> None:
        """Add what is left of the old row, and sum up the squared norms of the pieces if they were taken."""
        rest = [None if i in squares else other for i, other in enumerate(earlier)]
        if any(other is not None for other in rest):
            self.merge(Row(self.parameters, rest), keep)
        if squares:
            others = [part for i, part in enumerate(self.parts) if part is not None and i not in squares]
            total = float(torch.stack([square for found in squares.values() for square in found]).double().sum())
            self._sq_norm = total + sq_norm_of(others) if known_squares(total) else None

    def add(self, objective: int, gradients: Sequence[Tensor | None], weight: float) -> None:
        """Add ``weight`` times the gradients, one per parameter or None."""
        self.merge(Row(self.parameters, gradients), weight)

    def merge(self, other: Row, weight: float) -> None:
        """Add ``weight`` times another row."""
        pairs, self._sq_norm = [], None
        if self._flats and other._flats and all(self.reach) and all(other.reach):
            torch._foreach_add_(self._flats, other._flats, alpha=weight)
            return
        for i, (mine, theirs) in enumerate(zip(self.parts, other.parts, strict=True)):
            if mine is not None and theirs is not None:
                pairs.append((mine, theirs))
            elif theirs is not None:
                self.parts[i], self._flats = theirs * weight, []
        self.make_room(self.reach)
        if pairs:
            torch._foreach_add_([mine for mine, _ in pairs], [theirs for _, theirs in pairs], alpha=weight)

    def scale(self, factor: float) -> None:
        self._sq_norm = None
        if found := self._flats or _present(self.parts):
            torch._foreach_mul_(found, factor)

    def settle(self) -> None:
        """No entries are left out."""

    def make_room(self, layout: Sequence[int]) -> None:
        """Note which parameters are expected to be reached."""
        room = [old | new for old, new in zip(self.layout, layout, strict=True)]
        if room != self.layout:
            self.parts = self.parts  # before its blocks are cut anew
            self.layout, self._members, self._flats = room, [], []

    def blocks_cut(self) -> list[tuple[list[int], list[int]]]:
        """Return for each block its rows and its parameters; those of one type and place are a block."""
        if not self._members:
            groups: dict[tuple[torch.dtype, torch.device], list[int]] = {}
            for i, parameter in enumerate(self.parameters):
                if self.layout[i]:
                    groups.setdefault((parameter.dtype, parameter.device), []).append(i)
            self._members = list(groups.values())
        return [([0], members) for members in self._members]

    def matrices(self) -> list[Tensor]:
        """Return the blocks, each as one vector; what was not reached is zero."""
        return self._flats or [
            torch.cat([_filled(self.parts[i], self.parameters[i]).reshape(-1) for i in members])
            for _, members in self.blocks_cut()
        ]

    def replace(self, reach: Sequence[int], flats: Sequence[Tensor]) -> None:
        """Take the memory of all blocks, and keep the parts that were reached."""
        self._flats, self._reached, self._parts, self._sq_norm = list(flats), reach, None, None

    @property
    def flat(self) -> Tensor | None:
        """The row as one vector over all parameters, if its memory is one piece and all were reached."""
        return self._flats[0] if len(self._flats) == 1 and all(self.reach) else None

    def _cut(self, flats: Sequence[Tensor], reach: Sequence[int]) -> list[Tensor | None]:
        parts: list[Tensor | None] = [None] * len(self.parameters)
        for (_, members), flat in zip(self.blocks_cut(), flats, strict=True):
            for i, part in zip(members, views(flat, [self.parameters[i] for i in members]), strict=True):
                parts[i] = part if reach[i] else None
        return parts

    def combine(self, weights: Tensor) -> tuple[list[Tensor | None], float]:
        """Return the row itself, since lambda is in it already, and its squared norm."""
        known = self._sq_norm
        return list(self.parts), sq_norm_of(self._flats or _present(self.parts)) if known is None else known

    mix = combine

    def distance(self, other: Row, weights: Tensor) -> float:
        """Return the norm of the difference to another row."""
        pairs = [(a, b) for a, b in zip(self.parts, other.parts, strict=True) if a is not None and b is not None]
        return distance([a for a, _ in pairs], [b for _, b in pairs])

    def finite(self, gradients: Iterable[Tensor]) -> bool:
        """Return whether gradients have no NaN or infinity."""
        return all_finite(list(gradients))

    def row(self, objective: int) -> dict[int, Tensor]:
        """Return the reached parts by parameter index."""
        return {i: part for i, part in enumerate(self.parts) if part is not None}

    def load(self, objective: int, parts: Sequence[Tensor | None]) -> None:
        """Set the row, one part per parameter or None."""
        pairs = zip(self.parameters, parts, strict=True)
        self.parts = [None if part is None else torch.empty_like(p).copy_(part) for p, part in pairs]
        self._flats = []
        self.make_room(self.reach)


def _present(parts: Sequence[Tensor | None]) -> list[Tensor]:
    return [part for part in parts if part is not None]


def _filled(part: Tensor | None, parameter: Tensor) -> Tensor:
    return torch.zeros_like(parameter) if part is None else part


def _dense(gradient: Tensor | None) -> Tensor | None:
    return gradient if gradient is None or gradient.layout is torch.strided else gradient.to_dense()
