"""U split over the processes: each keeps its columns, and no process ever holds all of them."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor

from stimulus_moo._engine.accumulator import Accumulator
from stimulus_moo._engine.differentiation import Engine
from stimulus_moo._engine.memory import MemoryEstimate
from stimulus_moo._engine.objective import Objective
from stimulus_moo._engine.observation import Probe
from stimulus_moo._engine.replay import Snapshot
from stimulus_moo._engine.rows import Rows, Storage
from stimulus_moo._engine.transaction import Account, Piece, side_of
from stimulus_moo.anchors import Spread
from stimulus_moo.distributed.group import Group
from stimulus_moo.distributed.message import Head
from stimulus_moo.distributed.sharded_rows import ShardedRows
from stimulus_moo.distributed.summed import SummedLedger
from stimulus_moo.errors import DistributedError
from stimulus_moo.estimators import Update

#: Up to so many parameters a step's own S rows are collected first and split up in one message; above, row by row.
WHOLE = 1 << 19


class ShardedLedger(SummedLedger):
    """A ledger that keeps this process's columns of U, and a second copy of them so that a failed step is taken back.

    What this process adds to an update is collected as whole rows for the time of a step, summed and split up in one
    message, and let go.
    """

    def __init__(self, group: Group, objective: Objective, engine: Engine, storage: Storage | None = None) -> None:
        super().__init__(group, objective, engine, storage)
        self._begun: ShardedRows | None = None  # the sum of the first part of an anchor

    def apply(
        self, update: Update, batch: Any, step: int, guard: Snapshot, account: Account, probe: Probe | None = None
    ) -> None:
        """Build U_t together."""
        self._begun = None
        super().apply(update, batch, step, guard, account, probe)

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

    def _apply_compiled(
        self, update: Update, batch: Any, size: int, step: int, account: Account, probe: Probe | None
    ) -> bool:
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

    def _tally(self, spread: Spread) -> Spread:
        everyone = self._sum(Account(), spread, last=False)
        assert isinstance(self._pending, ShardedRows)
        self._begun, self._pending = self._pending, None
        return everyone


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
        piece: Piece,
        step: int,
        weight: float,
        account: Account,
        *,
        at_previous: bool = False,
        probe: Probe | None = None,
    ) -> None:
        evaluated = self.objective.evaluate(piece.content, step)
        graphs = evaluated.graphs
        self._round(active=True, own=(len(graphs), self._masks(graphs)))
        target = self._open_rows()
        intake = Accumulator(target, weight, step, side=side_of(probe, piece, len(graphs), at_previous))
        try:
            self.engine.differentiate(graphs, self.objective.parameters, intake, large=False)
        except DistributedError:
            raise
        except BaseException:
            for s in range(intake.finished, target.objectives):  # the others wait for the rest of this round
                target.add_nothing(s)
            raise
        account.add(evaluated.losses, piece.size)

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

    def _tally(self, spread: Spread) -> Spread:
        return self._sum(Account(), spread, last=False)

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
