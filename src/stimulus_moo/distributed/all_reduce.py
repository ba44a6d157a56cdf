"""Reducer for several processes that each keep all of U: one summed message per step."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch
from torch import Tensor

from stimulus_moo._engine.memory import MemoryEstimate
from stimulus_moo._engine.reducer import Reducer
from stimulus_moo._engine.rows import Rows
from stimulus_moo._engine.storage import Storage
from stimulus_moo._engine.store import Store
from stimulus_moo._engine.transaction import Account, Transaction
from stimulus_moo.anchors.variance import Spread
from stimulus_moo.distributed.agreement import Agreement
from stimulus_moo.distributed.group import Group
from stimulus_moo.distributed.message import Head, pack, take_over, unpack
from stimulus_moo.errors import InvalidOption

#: Entries of U in one message. Up to this many, a step is one message; a larger U follows its head in parts.
BUCKET = 1 << 22


class GroupReducer(Reducer):
    """What the reducers of several processes have in common."""

    def __init__(self, group: Group, storage: Storage) -> None:
        if storage.dtype is torch.bfloat16:
            raise InvalidOption(
                "rows_dtype must be None, torch.float32 or torch.float64 where several processes make a step, found "
                "torch.bfloat16; shard=True lowers the memory further"
            )
        self.group = group
        self.partition = group.partition
        self.agreement = Agreement(group)

    def begin(self, transaction: Transaction, batch: object) -> None:
        """Begin a step; before the first, compare the processes."""
        self.agreement.begin(transaction.store, transaction.update, batch, transaction.step)

    def sum_vectors(self, vectors: Sequence[Tensor], share: float) -> None:
        """Replace vectors of means over this process's ``share`` of the samples by those over all samples."""
        for vector in vectors:
            for part in vector.view(-1).split(BUCKET):
                part.copy_(self.group.sum(part * share))

    def broadcast(self, weights: Tensor) -> Tensor:
        """Return the first process's weights: a rule may draw random numbers, and each process has its own stream."""
        return self.group.sum(weights.clone() if self.group.rank == 0 else torch.zeros_like(weights))

    def roll_back(self, store: Store) -> None:
        """Forget what the processes agreed on during the step."""
        self.agreement.roll_back(store)

    def commit(self) -> None:
        """Finish a step."""
        self.agreement.commit()

    def clear(self) -> None:
        """Forget everything the processes have agreed on."""
        self.agreement.clear()


class AllReduce(GroupReducer):
    """Sums the updates of all processes, weighted by how many samples each has brought.

    .. code-block:: text

        U_t = keep U_{t-1} + (1 / sum_r n_r) sum_r n_r (now grad F_r(x_t) + before grad F_r(x_{t-1}))

    Every process adds up n_r times its own term. A large U is updated in place: process r holds n_r (keep U_{t-1} + its
    own term) until the message, and their sum is (sum_r n_r) U_t. The message also has the number of samples, the
    losses, and whether a process failed, so that all continue or none does. After it, U_t is the same in all processes,
    bit for bit, and so is everything computed from it.
    """

    def sum(self, transaction: Transaction, account: Account, spread: Spread, *, last: bool = True) -> Spread:
        """Make the pending rows and the account the sums over all processes; return the sum of the spreads."""
        agreement, store, pending = self.agreement, transaction.store, transaction.pending
        if not agreement.objectives:
            self._agree(transaction)
        if not agreement.objectives:
            agreement.open = False
            return spread  # no process has brought anything
        if pending is not None:
            pending.make_room(store.layout)
            pending.settle()
        head = Head(agreement.objectives, transaction.step, account, spread)
        if pending is not None:
            head.grown = pending.layout != store.layout
            head.partial = pending.reach != store.layout
        total = self._post(transaction, head)
        if total.grown:
            self._agree(transaction)
            return self.sum(transaction, account, spread, last=last)
        agreement.open = not last
        return take_over(total, account, store, look_back=transaction.update.look_back)

    def tally(self, transaction: Transaction, spread: Spread) -> Spread:
        """Sum in the middle of an anchor: each process continues from its part of the sum."""
        everyone = self.sum(transaction, Account(), spread, last=False)
        assert transaction.pending is not None
        transaction.pending.scale(1.0 / self.group.size)
        return everyone

    def abandon(self, store: Store, error: BaseException) -> None:
        """Send the message the others wait for, marked as a failure."""

        def send_failure() -> None:
            if self.agreement.objectives:
                head = Head(self.agreement.objectives, self.agreement.step, failed=True)
                self._send(store, head, None)
            else:
                self.agreement.settle_layout(store, None, failed=True)

        self.agreement.tell(error, send_failure)

    def memory(self, estimate: MemoryEstimate, parameters: int) -> MemoryEstimate:
        """Add the message, a copy of a small U."""
        small = estimate.objectives * parameters <= BUCKET
        return dataclasses.replace(estimate, transient=estimate.transient + (estimate.rows if small else 0))

    def _agree(self, transaction: Transaction) -> None:
        pending = transaction.pending
        own = None if pending is None else (pending.objectives, pending.layout)
        self.agreement.settle_layout(transaction.store, own)

    def _send(self, store: Store, head: Head, own: Rows | None) -> tuple[Head, Tensor | None]:
        """Send the head, with all of U if it is small; return the sum of the heads, and that of U if it was sent."""
        entries = _entries_with_head(store)
        room = head.vector(_message_type(store))
        message = torch.zeros(len(room) + entries, dtype=room.dtype)
        message[: len(room)] = room
        if entries and own is not None and not head.grown:
            pack(message[len(room) :], [block.matrix for block in own.blocks])
        message = self.group.sum(message)
        return head.summed(message[: len(room)]), message[len(room) :] if entries else None

    def _post(self, transaction: Transaction, head: Head) -> Head:
        """Exchange heads and rows; leave the sum of the rows in the transaction.

        Raises:
            StimulusError: a process failed, or they are not at the same step; nothing has been written then.
        """
        total, rows = self._send(transaction.store, head, transaction.pending)
        if total.failed:
            self.agreement.raise_failure(None)
        self.agreement.require_same_step(total.step, head.step)
        if not total.grown:
            self._receive(transaction, rows, total)
        return total

    def _receive(self, transaction: Transaction, rows: Tensor | None, total: Head) -> None:
        """Put the sum of the rows where U_t is built, and what they reach."""
        store, own = transaction.store, transaction.pending
        idle = own is None  # this process has evaluated nothing
        if own is None:
            in_place = transaction.in_place
            own = store.rows if in_place else store.blank(self.agreement.objectives, forget=not transaction.update.keep)
            assert own is not None
            own.make_room(store.layout)
            own.settle()
        reach = [0] * len(store.layout) if idle else own.reach
        transaction.written |= own is store.rows
        transaction.pending = own
        if rows is not None:
            unpack(rows, [block.matrix for block in own.blocks])
        else:
            self._sum_parts(own, idle)
        own.reach = self.agreement.union(reach) if total.partial else list(store.layout)

    def _sum_parts(self, own: Rows, idle: bool) -> None:
        """Sum a large U in place, part by part."""
        if idle:
            own.scale(0.0)
        for block in own.blocks:
            for part in block.matrix.view(-1).split(BUCKET):
                part.copy_(self.group.sum(part))


def _entries_with_head(store: Store) -> int:
    """Return how many entries of U travel with the head: all of a small one, none of a large one."""
    entries = sum(
        mask.bit_count() * parameter.numel()
        for mask, parameter in zip(store.layout, store.objective.parameters, strict=True)
    )
    return entries if entries <= BUCKET else 0


def _message_type(store: Store) -> torch.dtype:
    types = {store.storage.dtype_for(parameter) for parameter in store.objective.parameters}
    return torch.float64 if torch.float64 in types else torch.float32
