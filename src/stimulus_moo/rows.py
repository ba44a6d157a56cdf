"""U, the S x P matrix of the estimate, stored in blocks: a head's row is kept only for the objective it serves."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

_CHUNK = 1 << 18  # columns turned to float64 at a time for the Gramian: 2 MiB a row


class Block:
    """The rows of the objectives that reach one group of parameters of equal type and place."""

    def __init__(self, objectives: list[int], members: list[int], parameters: Sequence[Tensor]) -> None:
        self.objectives = objectives
        self.members = members
        self.sizes = [parameters[i].numel() for i in members]
        first = parameters[members[0]]
        dtype = torch.promote_types(first.dtype, torch.float32)  # accumulate in float32 at the least
        self.matrix = torch.zeros(len(objectives), sum(self.sizes), dtype=dtype, device=first.device)
        # The index of the objectives, ready for gathering from and adding into S-long tensors.
        self.index = torch.tensor(objectives)

    def pieces(self, flat: Tensor, parameters: Sequence[Tensor]) -> Iterator[tuple[int, Tensor]]:
        """Yield (parameter index, its part of a flat row in the parameter's shape)."""
        for i, part in zip(self.members, flat.split(self.sizes), strict=True):
            yield i, part.view(parameters[i].shape)


class Rows:
    """S rows over the model's parameters.

    ``reach[i]`` is a bit mask of the objectives whose graph has reached parameter i since the rows were last cleared.
    Parameters with the same mask, dtype and device share one dense block, so a model without task heads has a single
    S x P matrix, and a head that only objective s uses is stored once.
    """

    def __init__(self, parameters: Sequence[Tensor], objectives: int, decisive: Sequence[bool]) -> None:
        self.parameters = parameters
        self.objectives = objectives
        self.decisive = decisive  # does the parameter count for the Gramian (``shared=``)?
        self.entries = objectives * sum(parameter.numel() for parameter in parameters)  # S x P, were nothing saved
        self.reach = [0] * len(parameters)
        self.blocks: list[Block] = []
        self.layout = [0] * len(parameters)  # the reach there is room for; how blocks are cut decides the rounding
        self._views: list[list[Tensor | None]] = [[None] * len(parameters) for _ in range(objectives)]

    def cover(self, reach: Sequence[int]) -> None:
        """Make room for what a new evaluation reaches; values already there stay."""
        self.reach = [old | new for old, new in zip(self.reach, reach, strict=True)]
        self.make_room(self.reach)

    def make_room(self, layout: Sequence[int]) -> None:
        """Make room for a reach that is expected; values already there stay."""
        if any(wanted & ~room for wanted, room in zip(layout, self.layout, strict=True)):
            self._rebuild([wanted | room for wanted, room in zip(layout, self.layout, strict=True)])

    def add(self, objective: int, members: Sequence[int], gradients: Sequence[Tensor | None], weight: float) -> None:
        """Add ``weight`` times one objective's gradients (one per member parameter) into its row."""
        views = self._views[objective]
        targets: list[Tensor] = []
        terms: list[Tensor] = []
        for i, gradient in zip(members, gradients, strict=True):
            view = views[i]
            if gradient is not None and view is not None:
                targets.append(view)
                terms.append(gradient)
        if targets:
            torch._foreach_add_(targets, terms, alpha=weight)

    def merge(self, other: Rows, weight: float) -> None:
        """Add ``weight`` times other rows of the same model."""
        self.cover(other.reach)
        if self.layout == other.layout:
            for mine, theirs in zip(self.blocks, other.blocks, strict=True):
                mine.matrix.add_(theirs.matrix, alpha=weight)
            return
        for objective, views in enumerate(other._views):
            members = [i for i in range(len(views)) if other.reach[i] >> objective & 1]
            self.add(objective, members, [views[i] for i in members], weight)

    def scale(self, factor: float) -> None:
        """Multiply every row by a number."""
        for block in self.blocks:
            block.matrix.mul_(factor)

    def clear(self) -> None:
        """Set every row to zero and forget what was reached; the memory is kept for the next use."""
        self.reach = [0] * len(self.parameters)
        for block in self.blocks:
            block.matrix.zero_()

    def gramian(self) -> Tensor:
        """Return U U^T over the parameters that decide the weights, as a float64 matrix on the CPU."""
        gramian = torch.zeros(self.objectives, self.objectives, dtype=torch.float64)
        for block in self.blocks:
            if not self.decisive[block.members[0]]:
                continue
            for columns in block.matrix.split(_CHUNK, dim=1):
                part = columns.double()
                product = (part @ part.T).cpu()
                gramian[block.index[:, None], block.index] += product
        return gramian

    def combine(self, weights: Tensor) -> tuple[list[Tensor | None], Tensor]:
        """Return d = sum_s weights[s] u^s, one tensor per parameter (None where nothing was reached), and ||d||^2."""
        direction: list[Tensor | None] = [None] * len(self.parameters)
        sq_norm = torch.zeros((), dtype=torch.float64)
        for block in self.blocks:
            chosen = weights[block.index].to(block.matrix)
            flat = chosen @ block.matrix
            sq_norm += torch.linalg.vector_norm(flat, dtype=torch.float64).square().cpu()
            for i, part in block.pieces(flat, self.parameters):
                if self.reach[i]:
                    direction[i] = part.to(self.parameters[i].dtype)
        return direction, sq_norm

    def sq_norms(self) -> Tensor:
        """Return ||u^s||^2 over all parameters for every s, in float64 on the CPU."""
        total = torch.zeros(self.objectives, dtype=torch.float64)
        for block in self.blocks:
            norms = torch.linalg.vector_norm(block.matrix, dim=1, dtype=torch.float64).square()
            total.index_add_(0, block.index, norms.cpu())
        return total

    def first_non_finite(self) -> int | None:
        """Return the first objective whose row holds NaN or infinity, or None."""
        bad: set[int] = set()
        for block in self.blocks:
            if torch.isfinite(block.matrix.sum()):  # one pass in the usual case; a sum may overflow, so look again
                continue
            finite = torch.isfinite(block.matrix).all(dim=1)
            bad.update(s for s, ok in zip(block.objectives, finite.tolist(), strict=True) if not ok)
        return min(bad, default=None)

    def row(self, objective: int) -> dict[int, Tensor]:
        """Return the reached parts of one row by parameter index (views, not copies)."""
        views = enumerate(self._views[objective])
        return {i: view for i, view in views if view is not None and self.reach[i] >> objective & 1}

    def _rebuild(self, layout: list[int]) -> None:
        kept = [self.row(s) for s in range(self.objectives)]
        groups: dict[tuple[int, torch.dtype, torch.device, bool], list[int]] = {}
        for i, mask in enumerate(layout):
            if mask:
                parameter = self.parameters[i]
                key = (mask, parameter.dtype, parameter.device, self.decisive[i])
                groups.setdefault(key, []).append(i)
        views: list[list[Tensor | None]] = [[None] * len(self.parameters) for _ in range(self.objectives)]
        blocks = []
        for (mask, *_), members in groups.items():
            reached_by = [s for s in range(self.objectives) if mask >> s & 1]
            block = Block(reached_by, members, self.parameters)
            blocks.append(block)
            for k, s in enumerate(reached_by):
                for i, part in block.pieces(block.matrix[k], self.parameters):
                    views[s][i] = part
                    if i in kept[s]:
                        part.copy_(kept[s][i])
        self.layout, self.blocks, self._views = layout, blocks, views  # together: building them may run out of memory
