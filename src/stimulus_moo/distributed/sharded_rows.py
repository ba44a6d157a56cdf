"""The rows of a process that keeps only its columns of U: what needs more than these is asked from the others."""

from collections.abc import Sequence

import torch
from torch import Tensor

from stimulus_moo._engine.norms import sq_norm_of
from stimulus_moo._engine.rows import Block, Rows
from stimulus_moo._engine.storage import Storage
from stimulus_moo.distributed.group import Group
from stimulus_moo.distributed.split_rows import SplitRows


class ShardedRows(SplitRows):
    """S rows over the model's parameters, of which this process keeps its columns.

    ``add``, ``row``, ``gramian``, ``combine`` and whatever else needs more than these are collectives.
    """

    sums_at_once = True

    def __init__(
        self, group: Group, parameters: Sequence[Tensor], objectives: int, decisive: Sequence[bool], storage: Storage
    ) -> None:
        super().__init__(group, parameters, objectives, decisive, storage)
        self.partition = group.partition

    def add(self, objective: int, gradients: Sequence[Tensor | None], weight: float) -> None:
        """Add every process's ``weight`` times its gradients to one row; without gradients, add nothing."""
        self.settle()
        blocks, size, slices = self.blocks_of(objective), self.group.size, []
        if not blocks:
            return  # an objective that has reached nothing yet in any process
        for block in blocks:
            flat = torch.zeros(size * block.width, dtype=self._type(), device=self._place())
            for i, part in zip(block.members, flat[: block.columns].split(block.sizes), strict=True):
                gradient = gradients[i] if gradients else None
                if gradient is not None:
                    self.reach[i] |= 1 << objective
                    torch.mul(gradient.reshape(-1).to(part), weight, out=part)
            slices.append(flat.view(size, block.width))
        own = self.group.scatter_sum(slices[0] if len(slices) == 1 else torch.cat(slices, dim=1))
        for block, part in zip(blocks, own.split([block.width for block in blocks]), strict=True):
            block.matrix[block.objectives.index(objective)].add_(part.to(block.matrix.device))

    def add_stacked(self, gradients: Sequence[Tensor | None], weight: float, present: int = -1) -> None:
        """Add all rows, one after the other."""
        for s in range(self.objectives):
            row = [
                None if stacked is None or not self.layout[i] & present & 1 << s else stacked[s]
                for i, stacked in enumerate(gradients)
            ]
            self.add(s, row, weight)

    def merge(self, other: Rows, weight: float) -> None:
        """Add ``weight`` times other rows, cut in the same way."""
        other.make_room(self.layout)
        self.reach = [mine | theirs for mine, theirs in zip(self.reach, other.reach, strict=True)]
        for mine, theirs in zip(self.blocks, other.blocks, strict=True):
            mine.matrix.add_(theirs.matrix, alpha=weight)

    def row(self, objective: int) -> dict[int, Tensor]:
        """Return the reached parts of one row by parameter index, gathered from all processes."""
        found = {}
        for block in self.blocks_of(objective):
            flat = self.group.stack(block.matrix[block.objectives.index(objective)]).view(-1)[: block.columns]
            found.update(self._reached(block, flat, 1 << objective))
        return dict(sorted(found.items()))

    def mix(self, weights: Tensor) -> tuple[list[Tensor | None], float]:
        """Return d, of which every process forms its columns, and ||d||^2."""
        direction: list[Tensor | None] = [None] * len(self.parameters)
        slices = []
        for block in self.blocks:
            own = weights[block.index].to(block.matrix) @ block.matrix
            slices.append(own.to(self._place(), self._type()))
        every = self.group.stack(torch.cat(slices))
        sq_norm = sq_norm_of([every])
        start = 0
        for block in self.blocks:
            flat = every[:, start : start + block.width].reshape(-1)[: block.columns]
            start += block.width
            for i, part in self._reached(block, flat, -1).items():
                direction[i] = part
        return direction, sq_norm

    def _reached(self, block: Block, flat: Tensor, mask: int) -> dict[int, Tensor]:
        return {i: part for i, part in block.pieces(flat, self.parameters) if self.reach[i] & mask}

    def _type(self) -> torch.dtype:
        types = {block.matrix.dtype for block in self.blocks}
        return torch.float64 if torch.float64 in types else torch.float32

    def _place(self) -> torch.device:
        return self.blocks[0].matrix.device
