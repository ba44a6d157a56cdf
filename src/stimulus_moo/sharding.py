"""U split over the processes: each keeps its columns, and no process ever holds all of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from stimulus_moo.anchors import Spread
from stimulus_moo.distributed import Alone, Group
from stimulus_moo.engines import Engine
from stimulus_moo.errors import DistributedError
from stimulus_moo.estimators import Update
from stimulus_moo.guard import Guard
from stimulus_moo.intake import Intake
from stimulus_moo.ledger import Account, Ledger
from stimulus_moo.memory import MemoryEstimate
from stimulus_moo.objective import Objective
from stimulus_moo.rows import Block, Rows, Storage
from stimulus_moo.summed import Head, SummedLedger

#: Up to so many parameters a step's own S rows are collected first and split up in one message; above, row by row.
WHOLE = 1 << 19


def open_ledger(
    group: Group | Alone, shard: bool, objective: Objective, engine: Engine, storage: Storage | None = None
) -> Ledger:
    """Return the ledger for a process on its own, for one of several, or for one that keeps only its columns of U."""
    if isinstance(group, Alone):
        return Ledger(objective, engine, storage)
    if not shard:
        return SummedLedger(group, objective, engine, storage)
    kind = ShardedLedger if objective.dimension <= WHOLE else StreamedLedger
    return kind(group, objective, engine, storage)


class ShardedBlock(Block):
    """One process's columns of a block: as many for each, the last ones filled up with zeros."""

    def __init__(
        self, objectives: list[int], members: list[int], parameters: Sequence[Tensor], storage: Storage, group: Group
    ) -> None:
        self.objectives = objectives
        self.members = members
        self.sizes = [parameters[i].numel() for i in members]
        self.index = torch.tensor(objectives)
        self.columns = sum(self.sizes)  # of all processes
        self.width = -(-self.columns // group.size)  # of each
        first = parameters[members[0]]
        self.matrix = torch.zeros(
            len(objectives), self.width, dtype=storage.dtype_for(first), device=storage.device_for(first)
        )


class ShardedRows(Rows):
    """S rows over the model's parameters, of which this process keeps its columns.

    ``add``, ``row``, ``gramian``, ``combine`` and whatever else needs more than these are collectives.
    """

    def __init__(
        self,
        group: Group,
        parameters: Sequence[Tensor],
        objectives: int,
        decisive: Sequence[bool],
        storage: Storage,
    ) -> None:
        super().__init__(parameters, objectives, decisive, storage)
        self.group = group

    def add(self, objective: int, gradients: Sequence[Tensor | None], weight: float) -> None:
        """Add every process's ``weight`` times its gradients to one row; one without gradients gives none."""
        self.settle()
        for i, gradient in enumerate(gradients):
            self.reach[i] |= (gradient is not None) << objective
        blocks = self._blocks_of(objective)
        size = self.group.size
        message = torch.zeros(size, sum(block.width for block in blocks), dtype=self._type(), device=self._place())
        start = 0
        for block in blocks:
            flat = message.view(-1) if len(blocks) == 1 else message.new_zeros(size * block.width)
            parts = flat[: block.columns].split(block.sizes)
            for i, part in zip(block.members, parts, strict=True):
                gradient = gradients[i] if gradients else None
                if gradient is not None:
                    torch.mul(gradient.reshape(-1).to(part), weight, out=part)
            if len(blocks) > 1:
                message[:, start : start + block.width] = flat.view(size, block.width)
            start += block.width
        own = self.group.scatter_sum(message)
        for block, part in zip(blocks, own.split([block.width for block in blocks]), strict=True):
            block.matrix[block.objectives.index(objective)].add_(part.to(block.matrix.device))

    def take(self, own: Rows | None) -> None:
        """Add the sum over all processes of whole rows in the same layout; one that brings none takes part."""
        self.settle()
        size = self.group.size
        message = torch.zeros(
            size, sum(block.matrix.numel() for block in self.blocks), dtype=self._type(), device=self._place()
        )
        start = 0
        for k, block in enumerate(self._sharded()):
            stop = start + block.matrix.numel()
            for rank in range(size if own is not None else 0):
                assert own is not None
                columns = own.blocks[k].matrix[:, rank * block.width : (rank + 1) * block.width]
                message[rank, start:stop].view(-1, block.width)[:, : columns.shape[1]] = columns
            start = stop
        summed = self.group.scatter_sum(message)
        matrices = [block.matrix for block in self.blocks]
        for matrix, part in zip(matrices, summed.split([matrix.numel() for matrix in matrices]), strict=True):
            matrix.view(-1).add_(part.to(matrix.device))

    def add_nothing(self, objective: int) -> None:
        """Take part in a row to which this process has nothing to add."""
        self.add(objective, [], 0.0)

    def add_stacked(self, gradients: Sequence[Tensor | None], weight: float) -> None:
        """Add all rows, one after the other."""
        for s in range(self.objectives):
            row = [
                None if stacked is None or not self.layout[i] >> s & 1 else stacked[s]
                for i, stacked in enumerate(gradients)
            ]
            self.add(s, row, weight)

    def merge(self, other: Rows, weight: float) -> None:
        """Add ``weight`` times other rows, cut in the same way."""
        other.make_room(self.layout)
        self.reach = [mine | theirs for mine, theirs in zip(self.reach, other.reach, strict=True)]
        for mine, theirs in zip(self.blocks, other.blocks, strict=True):
            mine.matrix.add_(theirs.matrix, alpha=weight)

    def load(self, objective: int, parts: Sequence[Tensor | None]) -> None:
        """Set one row, which every process has in full."""
        bit = 1 << objective
        self.cover([bit if part is not None else 0 for part in parts])
        self._keep_columns(objective, dict(enumerate(parts)))

    def row(self, objective: int) -> dict[int, Tensor]:
        """Return the reached parts of one row by parameter index, gathered from all processes."""
        found = {}
        for block in self._blocks_of(objective):
            flat = self.group.stack(block.matrix[block.objectives.index(objective)]).view(-1)[: block.columns]
            found.update(self._reached(block, flat, 1 << objective))
        return dict(sorted(found.items()))

    def gramian(self) -> Tensor:
        """Return U U^T, the sum of what each process's columns give."""
        return self.group.sum(super().gramian())

    def sq_norms(self) -> Tensor:
        """Return ||u^s||^2 for every s."""
        return self.group.sum(super().sq_norms())

    def first_non_finite(self) -> int | None:
        """Return the first objective whose row holds NaN or infinity in any process, or None."""
        own = super().first_non_finite()
        found = self.group.stack(torch.tensor([-1 if own is None else own])).flatten().tolist()
        return min((value for value in found if value >= 0), default=None)

    def combine(self, weights: Tensor) -> tuple[list[Tensor | None], Tensor]:
        """Return d, of which every process forms its columns, and ||d||^2."""
        direction: list[Tensor | None] = [None] * len(self.parameters)
        slices = []
        for block in self.blocks:
            own = weights[block.index].to(block.matrix) @ block.matrix
            slices.append(own.to(self._place(), self._type()))
        every = self.group.stack(torch.cat(slices))
        sq_norm = torch.linalg.vector_norm(every, dtype=torch.float64).square().cpu()
        start = 0
        for block in self._sharded():
            flat = every[:, start : start + block.width].reshape(-1)[: block.columns]
            start += block.width
            parts = self._reached(block, flat.to(self.parameters[block.members[0]]), -1)
            for i, part in parts.items():
                direction[i] = part
        return direction, sq_norm

    def _reached(self, block: ShardedBlock, flat: Tensor, mask: int) -> dict[int, Tensor]:
        return {i: part for i, part in block.pieces(flat, self.parameters) if self.reach[i] & mask}

    def _keep_columns(self, objective: int, parts: dict[int, Tensor | None]) -> None:
        """Take this process's columns of a full row."""
        for block in self._blocks_of(objective):
            row = block.matrix[block.objectives.index(objective)]
            own = range(self.group.rank * block.width, (self.group.rank + 1) * block.width)
            start = 0
            for i, size in zip(block.members, block.sizes, strict=True):
                low, high = max(own.start, start), min(own.stop, start + size)
                part = parts.get(i)
                if part is not None and low < high:
                    row[low - own.start : high - own.start] = part.reshape(-1)[low - start : high - start].to(row)
                start += size

    def _rebuild(self, layout: list[int]) -> None:
        self.settle()
        kept = [self.row(s) for s in range(self.objectives)] if any(self.reach) else []
        self.layout, self.blocks = layout, self._cut(layout)
        for s, parts in enumerate(kept):
            self._keep_columns(s, dict(parts))

    def _block(self, objectives: list[int], members: list[int]) -> Block:
        return ShardedBlock(objectives, members, self.parameters, self.storage, self.group)

    def _sharded(self) -> list[ShardedBlock]:
        return [block for block in self.blocks if isinstance(block, ShardedBlock)]

    def _blocks_of(self, objective: int) -> list[ShardedBlock]:
        return [block for block in self._sharded() if objective in block.objectives]

    def _type(self) -> torch.dtype:
        types = {block.matrix.dtype for block in self.blocks}
        return torch.float64 if torch.float64 in types else torch.float32

    def _place(self) -> torch.device:
        return self.blocks[0].matrix.device


class ShardedLedger(SummedLedger):
    """A ledger that keeps this process's columns of U, and a second copy of them so that a failed step is taken back.

    What this process adds to an update is collected as whole rows for the time of a step, summed and split up in one
    message, and let go.
    """

    def __init__(self, group: Group, objective: Objective, engine: Engine, storage: Storage | None = None) -> None:
        super().__init__(group, objective, engine, storage)
        self._begun: ShardedRows | None = None  # the sum of the first part of an anchor

    def apply(self, update: Update, batch: Any, step: int, guard: Guard) -> Account:
        """Build U_t together."""
        self._begun = None
        return super().apply(update, batch, step, guard)

    def stages(self, objectives: int) -> bool:
        """Tell that updates are built beside the old rows: a part of U is small."""
        return True

    def new_rows(self, objectives: int) -> Rows:
        """Return empty rows for the model."""
        rows = ShardedRows(self.group, self.objective.parameters, objectives, self.objective.decisive, self.storage)
        rows.make_room(self.layout)
        return rows

    def adjusted(self, estimate: MemoryEstimate) -> MemoryEstimate:
        """Divide the rows by the processes, and add what a step collects and sends."""
        rows, staging = (-(-size // self.group.size) for size in (estimate.rows, estimate.staging))
        return dataclasses.replace(
            estimate, rows=rows, staging=staging, transient=estimate.transient + self._sent(estimate)
        )

    def _sent(self, estimate: MemoryEstimate) -> int:
        return 2 * estimate.rows

    def _blank(self, objectives: int) -> Rows:
        return super().new_rows(objectives)

    def _split_blank(self) -> ShardedRows:
        """Return empty split rows, in memory that was used before if there is any."""
        rows = super()._blank(self._objectives) if self._spare is not None else self.new_rows(self._objectives)
        assert isinstance(rows, ShardedRows)
        return rows

    def _apply_compiled(self, update: Update, batch: Any, size: int, step: int, account: Account) -> bool:
        if self.engine.name == "compiled":
            self.engine.give_up("it needs all of U in one process, and shard=True splits it")
        return False

    def _entries_with_head(self) -> int:
        return 0

    def _receive(self, rows: Tensor | None, own: Rows | None, total: Head) -> None:
        target = self._begun or self._split_blank()
        target.make_room(self.layout)
        reach = target.reach if own is None else [a | b for a, b in zip(target.reach, own.reach, strict=True)]
        target.take(own)
        target.reach = self._union(reach) if total.partial else list(self.layout)
        self._pending = target

    def _tally(self, spread: Spread) -> tuple[Spread, Callable[[], Tensor]]:
        everyone = self._sum(Account(), spread, last=False)
        assert isinstance(self._pending, ShardedRows)
        self._begun, self._pending = self._pending, None
        return everyone, self._begun.sq_norms


class StreamedLedger(ShardedLedger):
    """A ledger that keeps its columns of a large U, of which no process ever holds more than single rows besides.

    The rows of every evaluation are summed and split up as they come, one row per message. The processes go through
    their evaluations in rounds, each opened by a message of a few numbers: who still has something to evaluate, and
    whether anyone has failed. One with fewer pieces than the others takes part with nothing.
    """

    def _sent(self, estimate: MemoryEstimate) -> int:
        return estimate.transient  # one row

    def _blank(self, objectives: int) -> Rows:
        return self._split_blank()

    def _accumulate(
        self,
        piece: Any,
        step: int,
        weight: float,
        account: Account | None,
        size: int,
        *,
        at_previous: bool = False,
        square: bool = False,
    ) -> Intake:
        evaluated = self.objective.evaluate(piece, step)
        graphs = evaluated.graphs
        self._round(active=True, own=(len(graphs), self._masks(graphs)))
        target = self._open_rows()
        intake = Intake(target, weight, step, square=square)
        try:
            self.engine.differentiate(graphs, self.objective.parameters, intake, large=False)
        except DistributedError:
            raise
        except BaseException:
            for s in range(intake.finished, target.objectives):  # the others wait for the rest of this round
                target.add_nothing(s)
            raise
        if account is not None:
            account.add(evaluated.losses, size)
        return intake

    def _sum(self, account: Account, spread: Spread, *, last: bool = True) -> Spread:
        """Wait for the others; then the pending rows are the sums already, and the accounts are summed up."""
        while self._round(active=False):
            target = self._open_rows()
            for s in range(target.objectives):
                target.add_nothing(s)
        self._open = not last
        if not self._objectives:
            return spread  # nobody has brought anything
        target = self._open_rows()
        head = Head(self._objectives, self._step, account, spread)
        head.partial = target.reach != self.layout
        total = head.summed(self.group.sum(head.vector(torch.float64)))
        target.reach = self._union(target.reach) if total.partial else list(self.layout)
        return self._take_over(total, account)

    def _tally(self, spread: Spread) -> tuple[Spread, Callable[[], Tensor]]:
        return self._sum(Account(), spread, last=False), self.pending.sq_norms

    def _send_failure(self) -> None:
        self._round(active=False, failed=True)

    def _round(self, *, active: bool, own: tuple[int, list[int]] | None = None, failed: bool = False) -> bool:
        """Open a round; tell whether anyone has something to evaluate in it."""
        grown = own is not None and (
            own[0] != self._objectives or any(new & ~old for new, old in zip(own[1], self.layout, strict=True))
        )
        flags = self.group.sum(torch.tensor([failed, active, grown, self._step], dtype=torch.float64)).tolist()
        if failed:
            return False
        if flags[0]:
            self._raise_failure(None)
        self._require_same_step(flags[3], self._step)
        if flags[2]:
            self._settle_layout(self.group.gather((False, own)))
        return bool(flags[1])

    def _open_rows(self) -> ShardedRows:
        """Return the rows under way, with room for what the processes have agreed on."""
        if self._pending is None:
            self._pending = self._blank(self._objectives)
        self._pending.make_room(self.layout)
        assert isinstance(self._pending, ShardedRows)
        return self._pending
