"""A random projection of the S rows, from which their Gramian is estimated without the S x P matrix."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from stimulus_moo._engine.differentiation import Jacobian
from stimulus_moo._engine.nonfinite import finite
from stimulus_moo._engine.placement import WHOLE, Placement
from stimulus_moo._engine.rows import Block, Rows

#: k, the numbers kept per row; a prime, so that no layer's width has a divisor in common with it
WIDTH = 32_771

#: T, after which the signs repeat; a prime too: no two entries of one sum share a sign as long as P <= k T = 3e10
SIGNS = 1_048_583

_SEED = 20250721


class Sketch(Rows):
    r"""S rows of k numbers with about the same inner products as the rows of gradients.

    .. code-block:: text

        z^s_b = sum over i with i mod k = b of  e_(i mod T) u^s_i        e = +1 or -1 with equal odds, i = 0 ... P - 1

    The signs within one sum are independent, so E <z^s, z^r> = <u^s, u^r>. The standard deviation of the error is about
    ||u^s|| ||u^r|| sqrt(2 / k), 0.8%, if the squares of the entries are spread evenly over the k sums; the error is
    zero if P <= k (Charikar, Chen and Farach-Colton, 2002; Weinberger et al., 2009). The projection is linear and the
    same in all processes and at all steps, so sums over pieces, anchors and processes can be formed of sketches.

    Only parameters that decide the weights are part of it. With ``roots``, D^(-1/2) of a metric by parameter, the rows
    are multiplied by them first, so that the inner products are those of the metric.
    """

    def __init__(
        self,
        parameters: Sequence[Tensor],
        objectives: int,
        decisive: Sequence[bool],
        roots: Sequence[Tensor | None] | None = None,
        whole: Sequence[Tensor] | None = None,
        placement: Placement = WHOLE,
    ) -> None:
        super().__init__(parameters, objectives, decisive)
        self._roots = [None] * len(parameters) if roots is None else roots
        self.staged = False  # gradients are projected as they are computed, so that no row is held
        chosen = [i for i, counts in enumerate(decisive) if counts]
        whole = [(parameters if whole is None else whole)[i] for i in chosen]  # the parameters of which these are parts
        self._starts = dict(zip(chosen, placement.starts(whole), strict=True))
        width = min(WIDTH, sum(map(Tensor.numel, whole)))
        self._signs: dict[tuple[torch.dtype, torch.device], Tensor] = {}
        #: of each parameter, once it was cut: the sums that each piece is added to, its size, and its signs
        self._cuts: dict[int, tuple[list[Tensor], list[int], list[Tensor]]] = {}
        self.blocks = [_SketchBlock(objectives, parameters[chosen[0]], chosen[0], width)]
        #: what was added to one objective last; the same memory for all of them, so that it is cut once
        self._row, self._objective = self.blocks[0].matrix.new_zeros(width), 0

    def expect(self, masks: Callable[[], list[int]]) -> None:
        """There is room for everything."""

    def make_room(self, layout: Sequence[int]) -> None:
        """Note what is expected; there is room for everything."""
        self.layout = [wanted | room for wanted, room in zip(layout, self.layout, strict=True)]

    def add_jacobian(self, jacobian: Jacobian, weight: float) -> None:
        """Add all rows."""
        if jacobian.stacked is not None:
            self.add_stacked(jacobian.stacked, weight, jacobian.present)
        for objective, row in enumerate(jacobian.rows):
            self.add(objective, row, weight)

    def add(self, objective: int, gradients: Sequence[Tensor | None], weight: float) -> None:
        """Add ``weight`` times the sketch of one objective's gradients."""
        for i, gradient in enumerate(gradients):
            if gradient is not None:
                self.add_one(objective, i, gradient, weight)
        self.settle()

    def add_one(self, objective: int, i: int, gradient: Tensor, weight: float) -> None:
        """Add ``weight`` times the sketch of one objective's gradient for one parameter; ``settle`` completes it."""
        self.reach[i] |= 1 << objective
        self.layout[i] |= 1 << objective
        if objective != self._objective:
            self.settle()
            self._objective = objective
        row, root = self._row, self._roots[i]
        flat = (gradient if root is None else gradient * root).reshape(-1).to(row)
        if i in self._starts:
            sums, sizes, signs = self._pieces(i, flat)
            if not sizes:
                return  # this process has no part of it
            entries = flat.split(sizes)
            if flat.is_cpu:  # one after the other, since several pieces are added to the same sums
                torch._foreach_addcmul_(sums, entries, signs, value=weight)
            else:
                for total, part, sign in zip(sums, entries, signs, strict=True):
                    total.addcmul_(part, sign, value=weight)
        elif not finite(flat):
            row += torch.nan  # it must be found although this parameter does not decide the weights

    def add_stacked(self, gradients: Sequence[Tensor | None], weight: float, present: int = -1) -> None:
        """Add ``weight`` times the sketches of all objectives' gradients, [S, *shape] per parameter or None."""
        for objective in range(self.objectives):
            if present >> objective & 1:
                self.add(objective, [None if stacked is None else stacked[objective] for stacked in gradients], weight)

    def clear(self, *, lazily: bool = False) -> None:
        """Set the sketch to zero."""
        self.reach = [0] * len(self.parameters)
        self.blocks[0].matrix.zero_()
        self._row.zero_()

    def settle(self) -> None:
        """Complete the row to which something was added last."""
        self.blocks[0].matrix[self._objective] += self._row
        self._row.zero_()

    def gramian(self, step: int = 0, roots: Sequence[Tensor | None] | None = None) -> Tensor:
        """Return the Gramian; the metric is in the sketch already."""
        return super().gramian(step)

    def _pieces(self, i: int, flat: Tensor) -> tuple[list[Tensor], list[int], list[Tensor]]:
        """Return the pieces of a parameter: the sums that each is added to, its size, and its signs."""
        if i not in self._cuts:
            signs, position, width = self._signs_like(flat), self._starts[i], len(self._row)
            sums, sizes, cut, first = [], [], [], 0
            while first < len(flat):
                bucket, sign = (position + first) % width, (position + first) % SIGNS
                size = min(len(flat) - first, width - bucket, SIGNS - sign)
                sums.append(self._row[bucket : bucket + size])
                sizes.append(size)
                cut.append(signs[sign : sign + size])
                first += size
            self._cuts[i] = sums, sizes, cut
        return self._cuts[i]

    def _signs_like(self, flat: Tensor) -> Tensor:
        kind = flat.dtype, flat.device
        if kind not in self._signs:
            drawn = torch.randint(0, 2, (SIGNS,), generator=torch.Generator().manual_seed(_SEED), dtype=torch.int8)
            self._signs[kind] = drawn.to(flat).mul_(2.0).sub_(1.0)
        return self._signs[kind]


class _SketchBlock(Block):
    """The S x k matrix of a sketch, where ``Rows`` has blocks of gradients."""

    def __init__(self, objectives: int, like: Tensor, member: int, width: int) -> None:
        self.objectives, self.members = list(range(objectives)), [member]
        kind = torch.promote_types(like.dtype, torch.float32)
        self.matrix = torch.zeros(objectives, width, dtype=kind, device=like.device)
        self.index = torch.arange(objectives)
