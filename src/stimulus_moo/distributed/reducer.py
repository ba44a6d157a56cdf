"""How several processes form the sums of a step; a process on its own has no reducer."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from stimulus_moo._engine.account import Account
from stimulus_moo._engine.counted import summed
from stimulus_moo._engine.culprit import find_culprit
from stimulus_moo._engine.loss_forms import AnyRows
from stimulus_moo._engine.memory import MemoryEstimate
from stimulus_moo._engine.nonfinite import finite, too_large
from stimulus_moo._engine.observation import Piece
from stimulus_moo._engine.row import Row
from stimulus_moo._engine.rows import Rows
from stimulus_moo._engine.storage import Storage
from stimulus_moo._engine.store import Store
from stimulus_moo._engine.transaction import Transaction
from stimulus_moo.anchors import Anchor
from stimulus_moo.anchors.base import Tally
from stimulus_moo.anchors.variance import Spread
from stimulus_moo.distributed.agreement import Agreement, Layout
from stimulus_moo.distributed.fingerprint import fingerprint_of, structure_of
from stimulus_moo.distributed.group import Group, describe, told
from stimulus_moo.distributed.head import Head
from stimulus_moo.distributed.row_message import RowMessage
from stimulus_moo.distributed.sharded_rows import ShardedRows
from stimulus_moo.errors import DistributedError, InvalidOption, NonFiniteError

#: Entries of U in one message; a larger U is summed in parts.
BUCKET = 1 << 22


class AllReduce(Agreement):
    """Sums the updates of all processes, weighted by how many samples each has brought; every process keeps all of U.

    .. code-block:: text

        U_t = keep U_{t-1} + (1 / sum_r n_r) sum_r n_r (now grad F_r(x_t) + before grad F_r(x_{t-1}))

    A transaction calls ``begin`` first and ``sum`` last; in between it evaluates n_r times this process's own term. A
    large U is updated in place: process r holds n_r (keep U_{t-1} + its own term), and their sum is (sum_r n_r) U_t.
    The head of the message has the number of samples, the losses, and whether a process failed, so that all continue
    or none does. After the sum, U_t is the same in all processes, bit for bit, and so is everything computed from it.
    """

    #: whether the rows are split over the processes
    sharded = False

    def __init__(self, group: Group, storage: Storage, *, halves: bool = False) -> None:
        if storage.dtype is torch.bfloat16:
            raise InvalidOption(
                "rows_dtype must be None, torch.float32 or torch.float64 where several processes make a step, found "
                "torch.bfloat16; shard=True lowers the memory further"
            )
        super().__init__(group)
        self._compared = False  # have the processes been compared?
        self._halves = halves  # may a batch be cut in two halves? Then an evaluation begins with a message of its own
        self._gathers: int | None = None  # values that an evaluation has still to gather; None before it has begun
        self._before: Layout | None = None  # S and the layout before the current step
        self._message: RowMessage | None = None  # the one row of kept weights, if it is being sent
        self._sketched = False  # is the step that is under way a sketch, of which every process keeps all?
        #: what makes empty rows for a model
        self.new_rows: Callable[..., Rows] = partial(ShardedRows, group) if self.sharded else Rows

    def begin(self, transaction: Transaction, batch: Any) -> None:
        """Begin a step; before the first, raise RankMismatch on all processes where model, step or batch differ."""
        store, step = transaction.store, transaction.step
        self._step = self.group.step = step
        self._sketched = transaction.form.sketched
        if self._before is None:
            self._before = self._objectives, store.layout
        if not self._compared:
            self._compare(fingerprint_of(store, transaction.update, step) | structure_of(batch))
            self._compared = True
        self._open(transaction)

    def _open(self, transaction: Transaction) -> None:
        """Make sure that no process has failed before its evaluation, where that would be noticed too late."""
        gathers = _gathers_of(transaction)
        if self._halves:
            self.gather(None)
        self._gathers = gathers

    def sum_counts(self, own: list[float] | None) -> list[float] | None:
        """Return the sums of counts over all processes, None where none has any.

        They are sent only where counts are given, and also by processes that have nothing to count.
        """
        known = [counts for counts in self.gather(own) if counts is not None]
        return summed(known) if known else None

    def gather(self, own: Any) -> list[Any]:
        """Return a value of every process; only at the beginning of an evaluation, see ``_gathers_of``."""
        found = self.group.gather((False, own))
        if any(lost for lost, _ in found):
            self._raise_failure(None)
        self._gathers = None if self._gathers is None else self._gathers - 1
        return [value for _, value in found]

    def align(self, transaction: Transaction, pieces: list[Piece]) -> list[Piece]:
        """Return what this process evaluates, given its pieces: just these, each process as many as it has."""
        return pieces

    def factor(self, own: int) -> float:
        """Return what the mean over the pieces is multiplied by, given the samples of this process."""
        return float(own)

    def batches_of(self, anchor: Anchor, tally: Tally | None) -> Iterator[Any]:
        """Yield this process's batches of an anchor."""
        return anchor.batches(self.partition, tally)

    def target(self, transaction: Transaction, masks: Callable[[], list[int]]) -> AnyRows:
        """Return the rows to which the gradients of losses are added that reach what ``masks`` returns."""
        return transaction.open_rows(masks)

    def begin_sum(self, transaction: Transaction, account: Account) -> RowMessage | None:
        """Begin to send the one row of a step before it is differentiated; None if it can only be sent as a whole."""
        if self._objectives and transaction.store.plain_row:
            self._message = self._new_message(transaction, account, Spread())
        return self._message

    def sum(self, transaction: Transaction, account: Account, spread: Spread, *, last: bool = True) -> Spread:
        """Make the pending rows and the account those of all processes; return the spread of all processes."""
        store, form = transaction.store, transaction.form
        if not self._objectives:
            self._agree(store, _layout(transaction))
        if not self._objectives:
            self._awaited = False
            return spread  # no process has brought anything
        if form.weighted and store.plain_row:
            return self._sum_row(transaction, account, spread, last=last)
        own = None if transaction.pending is None else as_rows(transaction.pending)
        if form.weighted and own is not None and not own.finite(own.matrices()):
            raise find_culprit(transaction, transaction.evaluated)  # here, where it is known whose gradient it is
        head = Head(self._objectives, transaction.step, account, spread, counted=store.objective.counts is not None)
        total = self._exchange(transaction, head, own)
        self._awaited = not last
        rows = own or (as_rows(store.rows) if transaction.in_place else None)
        if rows is None:
            rows = as_rows(store.blank(form, self._objectives, forget=not transaction.update.keep))
        room = form.room(store.layout)
        if own is None:  # this process has evaluated nothing
            rows.make_room(room)
            rows.scale(0.0)
        transaction.objectives = self._objectives
        transaction.drops |= rows is store.rows
        transaction.pending = rows
        rows.settle()
        self._sum_rows(rows)
        reach = rows.reach if own is not None else [0] * len(store.layout)
        rows.reach = self._union(reach, rows.objectives) if total.partial else room
        return self._take_over(total, account, transaction)

    def tally(self, transaction: Transaction, spread: Spread) -> Spread:
        """Sum in the middle of an anchor, which then decides how many more samples it draws."""
        everyone = self.sum(transaction, Account(), spread, last=False)
        transaction.rows.scale(1.0 / self.group.size)  # each process continues from its part of the sum
        return everyone

    def sum_vectors(self, vectors: Sequence[Tensor], share: float) -> None:
        """Replace vectors of means over this process's ``share`` of the samples by those over all samples."""
        for vector in vectors:
            for part in vector.view(-1).split(BUCKET):
                part.copy_(self.group.sum(part * share))

    def broadcast(self, weights: Tensor) -> Tensor:
        """Return the first process's weights: a rule may draw random numbers, and each process has its own stream."""
        return self.group.sum(weights.clone() if self.group.rank == 0 else torch.zeros_like(weights))

    def abandon(self, store: Store, error: BaseException) -> None:
        """Tell the other processes that the step failed here, if they still wait for our part."""
        if isinstance(error, DistributedError) or not self._awaited:
            return
        if isinstance(error, NonFiniteError):
            error.objectives = store.objective.returned
        try:
            if not self._compared:
                self._compare(None)
            elif self._gathers_next(store):
                self.group.gather((True, None))
            else:
                self._send_failure(store)
            self._raise_failure(error)
        except DistributedError as second:
            error.add_note(f"the other ranks could not be told: {second}")
        finally:
            self._awaited = True  # at the next step; a failure before an evaluation is not rolled back

    def roll_back(self, store: Store) -> None:
        """Return to what the processes had agreed on before the step."""
        self._awaited, self._gathers, self._message = True, None, None
        if self._before is not None:
            self._objectives, store.layout = self._before
            self._before = None

    def proceed(self) -> None:
        """Finish one of several evaluations of a step; the others wait for the next one. Idempotent."""
        self._awaited, self._sketched, self._gathers = True, False, None

    def commit(self) -> None:
        """Finish a step."""
        self._awaited, self._before, self._gathers = True, None, None

    def clear(self) -> None:
        """Forget everything the processes have agreed on."""
        self._objectives, self._compared, self._before = 0, False, None

    def memory(self, estimate: MemoryEstimate, entries: int) -> MemoryEstimate:
        """Add the message, a copy of a small U with so many entries."""
        message = estimate.rows if entries <= BUCKET else 0
        return dataclasses.replace(estimate, transient=estimate.transient + message)

    def _exchange(self, transaction: Transaction, head: Head, own: Rows | None) -> Head:
        """Sum the heads; raise where a process failed or is at another step; make room for what any has reached."""
        store, room = transaction.store, transaction.form.room(transaction.store.layout)
        if own is not None:
            own.make_room(room)
            head.grown, head.partial = own.layout != room, own.reach != room
        total = head.summed(self.group)
        if total.failed:
            self._raise_failure(None)
        self._require_same_step(total.step, head.step)
        if total.grown:
            self._agree(store, _layout(transaction))
            if own is not None:
                own.make_room(transaction.form.room(store.layout))
        return total

    def _sum_rows(self, rows: Rows) -> None:
        flat = [block.matrix.view(-1) for block in rows.blocks]
        if not flat:
            return  # no process has a loss with a count
        if sum(map(len, flat)) <= BUCKET:
            total = self.group.sum(torch.cat(flat))
            torch._foreach_copy_(flat, total.split([len(part) for part in flat]))
        else:
            for part in (part for whole in flat for part in whole.split(BUCKET)):
                part.copy_(self.group.sum(part))

    def _new_message(self, transaction: Transaction, account: Account, spread: Spread) -> RowMessage:
        objective, room = transaction.store.objective, transaction.form.room(transaction.store.layout)
        head = Head(self._objectives, transaction.step, account, spread, counted=objective.counts is not None)
        return RowMessage(self.group, head, objective.parameters, room)

    def _sum_row(self, transaction: Transaction, account: Account, spread: Spread, *, last: bool) -> Spread:
        """Make the one row of kept weights that of all processes."""
        store, row = transaction.store, transaction.pending
        own = row.parts if isinstance(row, Row) else None  # None if this process has evaluated nothing
        while True:
            self._message = message = self._message or self._new_message(transaction, account, spread)
            flags = message.finish(own)
            self._message = None
            if message.total.failed or flags.failed:
                self._raise_failure(None)
            self._require_same_step(message.total.step, transaction.step)
            if not flags.grown:
                break
            self._agree(store, _layout(transaction))  # then send it again
        self._awaited = not last
        if not finite(message.row):
            self._raise_culprit(transaction, own)
        row = row or store.blank(transaction.form, self._objectives, forget=False)
        room = transaction.form.room(store.layout)
        reach = [int(part is not None) for part in own] if own is not None else [0] * len(room)
        row.make_room(room)
        row.replace(self._union(reach, 1) if flags.partial else room, [message.row] if any(room) else [])
        transaction.objectives, transaction.pending = self._objectives, row
        return self._take_over(message.total, account, transaction)

    def _raise_culprit(self, transaction: Transaction, own: Sequence[Tensor | None] | None) -> None:
        """Raise on all processes that the sum of their gradients is not finite, naming the process where it began."""
        error: Exception | None = None
        try:
            if not all(finite(part) for part in own or () if part is not None):
                error = find_culprit(transaction, transaction.evaluated)
                error.objectives = self._objectives
        except Exception as other:  # the others wait to be told
            error = other
        found = self.group.gather(None if error is None else describe(error))
        self._awaited = False
        rank = next((rank for rank, one in enumerate(found) if one is not None), None)
        if rank is None:
            raise too_large(transaction.store.objective.parameters[0].dtype, self._step, 0)
        raise error or told(rank, found[rank], self._step)

    def _take_over(self, total: Head, account: Account, transaction: Transaction) -> Spread:
        """Make the account that of all processes; return the spread of all processes."""
        parameters, found = transaction.store.objective.parameters, total.account
        double = any(parameter.dtype is torch.float64 for parameter in parameters)
        kind, device = torch.float64 if double else torch.float32, parameters[0].device
        account.seen, account.counts = found.seen, found.counts
        account.losses = None if found.losses is None else found.losses.to(device, kind)
        if transaction.update.look_back and found.before is not None:
            account.before = found.before.to(device, kind)
        return total.spread

    def _gathers_next(self, store: Store) -> bool:
        """Return whether the others wait for a value to be gathered, at the beginning of an evaluation."""
        return bool(self._gathers) or (self._gathers is None and (self._halves or store.objective.counts is not None))

    def _send_failure(self, store: Store) -> None:
        if self._message is not None:
            self._message.finish(failed=True)
        elif self._objectives:
            counted = store.objective.counts is not None
            Head(self._objectives, self._step, failed=True, counted=counted).summed(self.group)
        else:
            self._agree(store, None, failed=True)


def _gathers_of(transaction: Transaction) -> int:
    """Return how many values an evaluation gathers first: lengths and sizes of a batch in two halves, and counts."""
    probe, anchor = transaction.probe, transaction.update.anchor
    halves = anchor is None and probe is not None and probe.halves
    return 2 * halves + (transaction.store.objective.counts is not None)


def _layout(transaction: Transaction) -> Layout | None:
    return None if transaction.pending is None else transaction.layout()


def as_rows(rows: AnyRows | None) -> Rows:
    """Return rows that are not the one row of whole parameters."""
    assert isinstance(rows, Rows)
    return rows
