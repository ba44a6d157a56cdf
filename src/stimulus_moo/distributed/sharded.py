"""Reducer for U split over the processes: each keeps its columns and holds no more than single rows besides."""

import dataclasses
from collections.abc import Callable

import torch

from stimulus_moo._engine.account import Account
from stimulus_moo._engine.memory import MemoryEstimate
from stimulus_moo._engine.rows import Rows
from stimulus_moo._engine.store import Store
from stimulus_moo._engine.transaction import Transaction
from stimulus_moo.anchors.variance import Spread
from stimulus_moo.distributed.agreement import Layout
from stimulus_moo.distributed.head import Head
from stimulus_moo.distributed.reducer import AllReduce, as_rows


class ReduceScatter(AllReduce):
    """Sums and splits every row as it is computed, one row per message.

    The processes go through their evaluations in rounds, each opened by a message of a few numbers: who still has
    something to evaluate, and whether anyone failed. A process with fewer pieces than the others contributes nothing to
    the remaining rounds. U_t is built beside U_{t-1}, so that a failed step leaves no trace.
    """

    sharded = True
    _transaction: Transaction | None = None  # the one whose round is under way

    def target(self, transaction: Transaction, masks: Callable[[], list[int]]) -> Rows:
        """Open a round for losses that reach what ``masks`` returns; return the rows to which all processes add."""
        if transaction.form.sketched:  # a sketch is small: every process keeps all of it
            return as_rows(super().target(transaction, masks))
        store, form = transaction.store, transaction.form
        room, reached = form.room(store.layout), masks()
        grown = transaction.objectives != self._objectives
        grown |= any(new & ~old for new, old in zip(reached, room, strict=True))
        self._round(store, active=True, own=(transaction.objectives, transaction.known(reached)), grown=grown)
        self._transaction, transaction.accumulator = transaction, None
        return self._open_rows(transaction)

    def sum(self, transaction: Transaction, account: Account, spread: Spread, *, last: bool = True) -> Spread:
        """Wait for the others; then the pending rows are the sums already, and the accounts are summed."""
        if transaction.form.sketched:
            return super().sum(transaction, account, spread, last=last)
        store, self._transaction = transaction.store, None
        while self._round(store, active=False):
            _add_nothing(self._open_rows(transaction))
        self._awaited = not last
        if not self._objectives:
            return spread  # no process has brought anything
        transaction.objectives = self._objectives
        rows = self._open_rows(transaction)
        head = Head(self._objectives, transaction.step, account, spread, counted=store.objective.counts is not None)
        total = self._exchange(transaction, head, rows)
        room = transaction.form.room(store.layout)
        rows.reach = self._union(rows.reach, rows.objectives) if total.partial else room
        return self._take_over(total, account, transaction)

    def tally(self, transaction: Transaction, spread: Spread) -> Spread:
        """Sum in the middle of an anchor."""
        if transaction.form.sketched:
            return super().tally(transaction, spread)
        return self.sum(transaction, Account(), spread, last=False)

    def roll_back(self, store: Store) -> None:
        """Return to what the processes had agreed on before the step."""
        self._transaction = None
        super().roll_back(store)

    def memory(self, estimate: MemoryEstimate, entries: int) -> MemoryEstimate:
        """Divide the rows by the processes, and add the message of one row and what it is made of."""
        rows, staging = (-(-size // self.group.size) for size in (estimate.rows, estimate.staging))
        return dataclasses.replace(
            estimate, rows=rows, staging=staging, transient=estimate.transient + 2 * estimate.gradients
        )

    def _send_failure(self, store: Store) -> None:
        """Finish the current round with nothing, then report the failure in the next one."""
        transaction = self._transaction
        if self._sketched:
            super()._send_failure(store)
            return
        if transaction is not None and transaction.pending is not None:
            done = 0 if transaction.accumulator is None else transaction.accumulator.finished
            _add_nothing(as_rows(transaction.pending), done)
        self._round(store, active=False, failed=True)

    def _round(
        self, store: Store, *, active: bool, own: Layout | None = None, grown: bool = False, failed: bool = False
    ) -> bool:
        """Open a round; return whether any process has something to evaluate in it."""
        flags = self.group.sum(torch.tensor([failed, active, grown, self._step], dtype=torch.float64)).tolist()
        if failed:
            return False
        if flags[0]:
            self._raise_failure(None)
        self._require_same_step(flags[3], self._step)
        if flags[2]:
            self._agree(store, own)
        return bool(flags[1])

    def _open_rows(self, transaction: Transaction) -> Rows:
        """Return the rows of this step, with room for what the processes have agreed on."""
        store, form = transaction.store, transaction.form
        if transaction.pending is None:
            transaction.pending = store.blank(form, self._objectives, forget=False)
        transaction.pending.make_room(form.room(store.layout))
        return as_rows(transaction.pending)


def _add_nothing(rows: Rows, first: int = 0) -> None:
    """Take part in the remaining rows of a round without adding to them."""
    for s in range(first, rows.objectives):
        rows.add(s, [], 0.0)
