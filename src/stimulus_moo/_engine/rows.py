"""U, the S x P matrix of the estimate, stored in blocks: a head's row is kept only for the objective it serves."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence

import torch
from torch import Tensor

from stimulus_moo._engine.differentiation import Jacobian
from stimulus_moo._engine.nonfinite import all_finite, finite, non_finite_gradient
from stimulus_moo._engine.norms import distance, sq_norm_of
from stimulus_moo._engine.placement import reaches_nothing
from stimulus_moo._engine.products import combination_of, gramian_of
from stimulus_moo._engine.storage import Storage, add_rounded
from stimulus_moo.data.partition import ALL


class Block:
    """The rows of the objectives that reach one group of parameters of equal type and place.

    Where several processes split the rows, each has ``width`` of the columns; the last ones are filled up with zeros.
    """

    def __init__(self, objectives: list[int], members: list[int], rows: Rows) -> None:
        self.objectives, self.members, self.partition = objectives, members, rows.partition
        self.sizes = [rows.parameters[i].numel() for i in members]
        self.columns = sum(self.sizes)  # of all processes
        self.width = -(-self.columns // self.partition.size)  # of each
        first, storage = rows.parameters[members[0]], rows.storage
        kind, device = storage.dtype_for(first), storage.device_for(first)
        self.matrix = torch.zeros(len(objectives), self.width, dtype=kind, device=device)
        self.index = torch.tensor(objectives)  # for gathering from and adding into S-long tensors

    def write(self, objective: int, parts: dict[int, Tensor]) -> None:
        """Set this process's columns of one row, given whole parts by parameter index."""
        row = self.matrix[self.objectives.index(objective)]
        first, start = self.partition.rank * self.width, 0
        for i, size in zip(self.members, self.sizes, strict=True):
            low, high = max(first, start), min(first + self.width, start + size)
            if i in parts and low < high:
                row[low - first : high - first] = parts[i].reshape(-1)[low - start : high - start].to(row)
            start += size

    def flat(self, parts: Sequence[Tensor | None]) -> Tensor | None:
        """Return this process's columns of a vector, given by parameter; None stands for ones."""
        if all(parts[i] is None for i in self.members):
            return None
        kind = torch.promote_types(self.matrix.dtype, torch.float32)
        flat = torch.ones(self.width, dtype=kind, device=self.matrix.device)
        first, start = self.partition.rank * self.width, 0
        for i, size in zip(self.members, self.sizes, strict=True):
            low, high = max(first, start), min(first + self.width, start + size)
            if (part := parts[i]) is not None and low < high:
                flat[low - first : high - first] = part.reshape(-1)[low - start : high - start]
            start += size
        return flat

    def pieces(self, rows: Tensor, parameters: Sequence[Tensor]) -> Iterator[tuple[int, Tensor]]:
        """Yield (parameter index, its columns of one or several flat rows, in the parameter's shape)."""
        for i, part in zip(self.members, torch.split_with_sizes(rows, self.sizes, dim=-1), strict=True):
            yield i, part.view((*rows.shape[:-1], *parameters[i].shape))


class Rows:
    """S rows over the model's parameters.

    ``reach[i]`` is a bit mask of the objectives whose gradient has reached parameter i since the rows were last
    cleared. Parameters with the same mask, dtype and device share one dense block, so a model without task heads has a
    single S x P matrix, and a head that only objective s uses is stored once.
    """

    partition = ALL  # whose columns are kept
    weighted = False  # is it the one row of kept weights?
    sums_at_once = False  # is a gradient summed over all processes as it is added?

    def __init__(
        self, parameters: Sequence[Tensor], objectives: int, decisive: Sequence[bool], storage: Storage | None = None
    ) -> None:
        self.parameters = parameters
        self.objectives = objectives
        self.decisive = decisive  # does the parameter count for the Gramian (``shared=``)?
        self.storage = storage or Storage()
        self.staged = True  # are updates built beside these rows, not in place?
        self.reach = [0] * len(parameters)
        self.blocks: list[Block] = []
        self.layout = [0] * len(parameters)  # the reach there is room for; how blocks are cut decides the rounding
        self._views: list[dict[int, Tensor]] | None = None  # by objective and parameter
        # by parameter: bit mask of the objectives whose entries count as zero although old numbers stand there
        self._stale = [0] * len(parameters)

    def cover(self, reach: Sequence[int]) -> None:
        """Make room for what a new evaluation reaches; values already there stay."""
        if any(new & ~old for new, old in zip(reach, self.reach, strict=True)):
            self.reach = [old | new for old, new in zip(self.reach, reach, strict=True)]
            self.make_room(self.reach)

    def expect(self, masks: Callable[[], list[int]]) -> None:
        """Make room for what the first losses reach, if there is none yet."""
        if not self.blocks:
            self.make_room(masks())

    def make_room(self, layout: Sequence[int]) -> None:
        """Make room for a reach that is expected; values already there stay."""
        if any(wanted & ~room for wanted, room in zip(layout, self.layout, strict=True)):
            self._rebuild([wanted | room for wanted, room in zip(layout, self.layout, strict=True)])

    def add_jacobian(self, jacobian: Jacobian, weight: float) -> None:
        if jacobian.stacked is not None:
            self.add_stacked(jacobian.stacked, weight, jacobian.present)
        for objective, row in enumerate(jacobian.rows):
            if not jacobian.present >> objective & 1:
                continue
            if all(gradient is None for gradient in row):
                raise reaches_nothing(objective)
            self.add(objective, row, weight)

    def add(self, objective: int, gradients: Sequence[Tensor | None], weight: float) -> None:
        """Add ``weight`` times one objective's gradients, one per parameter or None, into its row."""
        self.settle()
        bit = 1 << objective
        self.cover([bit if gradient is not None else 0 for gradient in gradients])
        views = self._parts()[objective]
        self._sum([(views[i], gradient) for i, gradient in enumerate(gradients) if gradient is not None], weight)

    def add_one(self, objective: int, i: int, gradient: Tensor, weight: float) -> None:
        """Add ``weight`` times one objective's gradient for one parameter."""
        bit = 1 << objective
        if not self.reach[i] & bit:
            self.cover([bit if k == i else 0 for k in range(len(self.reach))])
        view = self._parts()[objective][i]
        if self._stale[i] & bit:
            self._stale[i] &= ~bit
            if self.storage.plain:
                torch.mul(gradient, weight, out=view) if gradient.dtype == view.dtype else view.copy_(gradient * weight)
                return
            view.zero_()
        self._sum([(view, gradient)], weight)

    def add_stacked(self, gradients: Sequence[Tensor | None], weight: float, present: int = -1) -> None:
        """Add ``weight`` times all objectives' gradients: one tensor [S, *shape] per parameter, or None.

        A row for which there is no room yet is not reached, unless its gradient is other than zero; nor is one that is
        not among the objectives of the bit mask ``present``.
        """
        found = [room & present for room in self.layout]
        for i, stacked in enumerate(gradients):
            if stacked is None:
                found[i] = 0
            elif self.layout[i] != (1 << self.objectives) - 1:
                nonzero = stacked.reshape(self.objectives, -1).ne(0).any(1).tolist()
                found[i] |= sum(1 << s for s, any_ in enumerate(nonzero) if any_)
        fresh = self._stale == self.layout == found and self.storage.plain  # is every old number replaced?
        if not fresh:
            self.settle()
        self.cover(found)
        pairs: list[tuple[Tensor, Tensor]] = []
        for block in self.blocks:
            whole = len(block.objectives) == self.objectives
            for i, columns in block.pieces(block.matrix, self.parameters):
                if (stacked := gradients[i]) is not None:
                    terms = stacked if whole else stacked[block.index.to(stacked.device)]
                    pairs += [(columns, terms)] if self.storage.plain else zip(columns, terms, strict=True)
        if fresh:
            self._stale = [0] * len(self.parameters)
            for columns, terms in pairs:
                torch.mul(terms, weight, out=columns) if terms.dtype == columns.dtype else columns.copy_(terms * weight)
        else:
            self._sum(pairs, weight)

    def blocks_cut(self) -> list[tuple[list[int], list[int]]]:
        """Return for each block its objectives and its parameters."""
        return [(block.objectives, block.members) for block in self.blocks]

    def matrices(self) -> list[Tensor]:
        return [block.matrix for block in self.blocks]

    def replace(self, reach: Sequence[int], matrices: Sequence[Tensor]) -> None:
        """Replace the matrix of each block, in the current layout."""
        self.reach = list(reach)
        self._stale = [0] * len(self.parameters)
        for block, matrix in zip(self.blocks, matrices, strict=True):
            block.matrix = matrix
        self._views = None

    def load(self, objective: int, parts: Sequence[Tensor | None]) -> None:
        """Set one row, one part per parameter or None where nothing was reached."""
        found = {i: part for i, part in enumerate(parts) if part is not None}
        self.cover([(i in found) << objective for i in range(len(parts))])
        for block in self.blocks_of(objective):
            block.write(objective, found)

    def merge(self, other: Rows, weight: float) -> None:
        """Add ``weight`` times other rows of the same model."""
        self.cover(other.reach)
        if self.layout == other.layout:
            for mine, theirs in zip(self.blocks, other.blocks, strict=True):
                mine.matrix.add_(theirs.matrix, alpha=weight)
            return
        for objective in range(self.objectives):
            row = other.row(objective)
            self.add(objective, [row.get(i) for i in range(len(self.parameters))], weight)

    def scale(self, factor: float) -> None:
        for block in self.blocks:
            block.matrix.mul_(factor)

    def scale_each(self, factors: Sequence[float]) -> None:
        """Multiply every row by a factor of its own."""
        for block in self.blocks:
            own = torch.tensor([factors[s] for s in block.objectives], dtype=block.matrix.dtype)
            block.matrix.mul_(own.to(block.matrix.device)[:, None])

    def clear(self, *, lazily: bool = False) -> None:
        """Set every row to zero and forget what was reached; ``lazily`` leaves the zeros to ``settle``."""
        self.reach = [0] * len(self.parameters)
        self._stale = list(self.layout)
        if not lazily:
            self.settle()

    def settle(self) -> None:
        """Write the zeros that ``clear(lazily=True)`` left out; needed before any use of the rows but ``add_one``."""
        if not any(self._stale):
            return
        if self._stale == self.layout:
            for block in self.blocks:
                block.matrix.zero_()
        else:
            for objective, views in enumerate(self._parts()):
                for i, view in views.items():
                    if self._stale[i] >> objective & 1:
                        view.zero_()
        self._stale = [0] * len(self.parameters)

    def gramian(self, step: int = 0, roots: Sequence[Tensor | None] | None = None) -> Tensor:
        """Return U U^T over the parameters that decide the weights, in float64 on the CPU; raise NonFiniteError.

        ``roots`` are D^(-1/2) by parameter, or None where that is 1; the result is then U D^-1 U^T.
        """
        gramian = self._products(roots)
        suspect = not math.isfinite(gramian.sum()) or not all(self.decisive)
        if suspect and (bad := self.first_non_finite()) is not None:
            raise non_finite_gradient(bad, step)
        return gramian

    def _products(self, roots: Sequence[Tensor | None] | None) -> Tensor:
        gramian = torch.zeros(self.objectives, self.objectives, dtype=torch.float64)
        for block in self.blocks:
            if not self.decisive[block.members[0]]:
                continue
            product = gramian_of(block.matrix, None if roots is None else block.flat(roots)).cpu()
            if len(self.blocks) == 1 and len(block.objectives) == self.objectives:
                return product
            gramian[block.index[:, None], block.index] += product
        return gramian

    def distance(self, other: Rows, weights: Tensor) -> float:
        """Return ||sum_s weights[s] (u^s - v^s)|| for other rows v."""
        pairs = zip(self.combine(weights)[0], other.combine(weights)[0], strict=True)
        shared = [(a, b) for a, b in pairs if a is not None and b is not None]
        return distance([a for a, _ in shared], [b for _, b in shared])

    def combine(self, weights: Tensor) -> tuple[list[Tensor | None], float]:
        """Return d = sum_s weights[s] u^s, one tensor per parameter (None where nothing was reached), and ||d||^2."""
        mixed, sq_norm = self.mix(weights)
        return [None if part is None else part.to(p) for p, part in zip(self.parameters, mixed, strict=True)], sq_norm

    def mix(self, weights: Tensor) -> tuple[list[Tensor | None], float]:
        """As ``combine``, in the precision of the rows."""
        mixed: list[Tensor | None] = [None] * len(self.parameters)
        sq_norm = 0.0
        for block in self.blocks:
            whole = len(block.objectives) == self.objectives
            flat = combination_of(block.matrix, weights if whole else weights[block.index])
            sq_norm += sq_norm_of([flat])
            for i, part in block.pieces(flat, self.parameters):
                if self.reach[i]:
                    mixed[i] = part
        return mixed, sq_norm

    def sq_norms(self) -> Tensor:
        """Return ||u^s||^2 over all parameters for every s, in float64 on the CPU."""
        total = torch.zeros(self.objectives, dtype=torch.float64)
        for block in self.blocks:
            squares = [sq_norm_of([row]) for row in block.matrix]
            total.index_add_(0, block.index, torch.tensor(squares, dtype=torch.float64))
        return total

    def finite(self, gradients: Iterable[Tensor]) -> bool:
        """Return whether gradients that are added to these rows have no NaN or infinity, in any process."""
        return all_finite(list(gradients))

    def first_non_finite(self) -> int | None:
        """Return the first objective whose row contains NaN or infinity, or None."""
        bad: set[int] = set()
        for block in self.blocks:
            if not finite(block.matrix):
                sound = torch.isfinite(block.matrix).all(dim=1).tolist()
                bad.update(s for s, ok in zip(block.objectives, sound, strict=True) if not ok)
        return min(bad, default=None)

    def row(self, objective: int) -> dict[int, Tensor]:
        """Return the reached parts of one row by parameter index (views, not copies)."""
        views = sorted(self._parts()[objective].items())
        return {i: view for i, view in views if self.reach[i] >> objective & 1}

    def blocks_of(self, objective: int) -> list[Block]:
        return [block for block in self.blocks if objective in block.objectives]

    def _sum(self, pairs: Sequence[tuple[Tensor, Tensor]], weight: float) -> None:
        if not self.storage.plain:
            for view, term in pairs:
                add_rounded(view, term.to(view.device), weight)
        elif pairs:
            torch._foreach_add_([view for view, _ in pairs], [g for _, g in pairs], alpha=weight)

    def _rebuild(self, layout: list[int]) -> None:
        self.settle()
        kept = [self.row(s) for s in range(self.objectives)] if any(self.reach) else []
        blocks = self._cut(layout)
        for block in blocks:
            for s in block.objectives if kept else ():
                block.write(s, kept[s])
        self.layout, self.blocks = layout, blocks  # together: building them may run out of memory
        self._views = None

    def _cut(self, layout: Sequence[int]) -> list[Block]:
        groups: dict[tuple[int, torch.dtype, torch.device, bool], list[int]] = {}
        for i, mask in enumerate(layout):
            if mask:
                parameter = self.parameters[i]
                key = (mask, parameter.dtype, parameter.device, self.decisive[i])
                groups.setdefault(key, []).append(i)
        return [
            Block([s for s in range(self.objectives) if mask >> s & 1], members, self)
            for (mask, *_), members in groups.items()
        ]

    def _parts(self) -> list[dict[int, Tensor]]:
        """Return by objective and parameter the view of that part of its row, where there is room for one."""
        if self._views is None:
            self._views = [{} for _ in range(self.objectives)]
            for block in self.blocks:
                for i, columns in block.pieces(block.matrix, self.parameters):
                    for s, view in zip(block.objectives, columns, strict=True):
                        self._views[s][i] = view
        return self._views
