"""The ledger of several processes: each adds up its share of an update, and one message makes them one."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from stimulus_moo._engine.differentiation import Engine
from stimulus_moo._engine.memory import MemoryEstimate
from stimulus_moo._engine.objective import Objective
from stimulus_moo._engine.observation import Probe
from stimulus_moo._engine.replay import Snapshot
from stimulus_moo._engine.rows import Rows, Storage
from stimulus_moo._engine.transaction import Account, Ledger
from stimulus_moo.anchors import Anchor, Spread
from stimulus_moo.data.batches import leading_size, tensors
from stimulus_moo.distributed.fingerprint import Fingerprint, digest, mismatch, portrait_of, structure_of
from stimulus_moo.distributed.group import Group, describe, told
from stimulus_moo.distributed.message import Head, pack, unpack
from stimulus_moo.errors import DistributedError, InvalidBatch, InvalidLosses, InvalidOption, RankMismatch
from stimulus_moo.estimators import Update

#: Entries of U that travel in one message. Up to so many, a step is one message; a larger U follows its head in parts.
BUCKET = 1 << 22


class SummedLedger(Ledger):
    """A ledger whose updates are sums over the processes of a group, weighted by how many samples each has brought.

    .. code-block:: text

        U_t = keep U_{t-1} + (1 / sum_r n_r) sum_r n_r (now grad F_r(x_t) + before grad F_r(x_{t-1}))

    Every process adds up n_r times its own term. A large U is updated in place: process r holds n_r (keep U_{t-1} + its
    own term) until the message, and their sum is (sum_r n_r) U_t. The message also carries how many samples there were,
    the losses, and whether a process has failed, so that all go on or none does. After it, U_t is the same in all
    processes, bit for bit, and so is everything that follows from it.
    """

    splits = False

    def __init__(self, group: Group, objective: Objective, engine: Engine, storage: Storage | None = None) -> None:
        if storage is not None and storage.dtype is torch.bfloat16:
            raise InvalidOption(
                "rows_dtype must be None, torch.float32 or torch.float64 where several processes make a step, found "
                "torch.bfloat16; shard=True lowers the memory further"
            )
        super().__init__(objective, engine, storage)
        self.group = group
        self.share = group.share
        self._objectives = 0  # S, once the processes have agreed on it and on ``layout``
        self._agreed = self._objectives, self.layout  # as it was before the step under way
        self._checked = False  # have the processes been compared?
        self._open = True  # are the others still waiting for our part of the step?
        self._in_place = False  # are the rows updated in place in the step under way?
        self._step = 0

    def apply(
        self, update: Update, batch: Any, step: int, guard: Snapshot, account: Account, probe: Probe | None = None
    ) -> None:
        """Build U_t together; before the first step, compare the processes."""
        self._step = self.group.step = step
        self._agreed = self._objectives, self.layout
        if not self._checked:
            self._compare(update, batch)
        super().apply(update, batch, step, guard, account, probe)

    def commit(self, *, remember_rows: bool, remember_point: bool) -> None:
        """Make the update final."""
        self._torn, self._open = False, True
        super().commit(remember_rows=remember_rows, remember_point=remember_point)

    def roll_back(self) -> int:
        """Take back what ``apply`` did."""
        self._open = True
        self._objectives, self.layout = self._agreed
        return super().roll_back()

    def clear(self) -> None:
        """Forget everything, and that the processes have agreed."""
        super().clear()
        self._objectives, self._checked = 0, False

    @property
    def revocable(self) -> bool:
        """Whether U_{t-1} is still there once the processes have summed up."""
        return self.rows is None or self._staged(self.rows)

    def adjusted(self, estimate: MemoryEstimate) -> MemoryEstimate:
        """Add the message, a copy of a small U."""
        small = estimate.objectives * self.objective.dimension <= BUCKET
        return dataclasses.replace(estimate, transient=estimate.transient + (estimate.rows if small else 0))

    def same(self, weights: Tensor) -> Tensor:
        """Return the first process's weights: a rule may draw random numbers, and each process has its own stream."""
        return self.group.sum(weights.clone() if self.group.rank == 0 else torch.zeros_like(weights))

    def abandon(self, error: BaseException) -> None:
        """Tell the others, where they do not know yet: they are waiting for our part of a message."""
        if isinstance(error, DistributedError) or not self._open:
            return
        try:
            if self._checked:
                self._send_failure()
            else:
                self._exchange_digests(failed=True)
            self._raise_failure(error)
        except DistributedError as second:
            error.add_note(f"the other ranks could not be told: {second}")
        finally:
            self._open = False

    # Before the first step: are we the same?

    def _compare(self, update: Update, batch: Any) -> None:
        """Raise RankMismatch on all processes where the model, the step or the batch's structure differ."""
        model, structure = portrait_of(self, update, self._step), structure_of(batch)
        found = self._exchange_digests(model, structure)
        if found[:, 0].any():
            self._raise_failure(None)
        brought = found[:, 3] != 0
        if (found[:, 1:3] != found[0, 1:3]).any():
            raise mismatch(self.group.gather(model), range(self.group.size), self._step)
        first = int(brought.nonzero()[0]) if brought.any() else 0
        if (found[brought, 3:5] != found[first, 3:5]).any():
            ranks = [rank for rank in range(self.group.size) if brought[rank]]
            raise mismatch(self.group.gather(structure), ranks, self._step)
        self._checked = True

    def _exchange_digests(
        self, model: Fingerprint | None = None, structure: Fingerprint | None = None, *, failed: bool = False
    ) -> Tensor:
        """Return for every process: failed, two numbers for its model, two for its batch (zero where it has none)."""
        return self.group.stack(torch.tensor([int(failed), *digest(model), *digest(structure)])).cpu()

    # The step

    def _pieces(self, batch: Any) -> list[tuple[Any, int]]:
        """Return what this process evaluates of its part of the batch, which may be None or have no samples."""
        if batch is None or (self.objective.batch_size is None and _is_empty(batch)):
            return []
        return super()._pieces(batch)

    def _own(self, update: Update, total: int) -> Update:
        """Return n_r times the update, without U_{t-1} unless that is where it is made."""
        self._in_place = bool(update.keep) and self.rows is not None and not self._staged(self.rows)
        keep = update.keep * total if self._in_place else 0.0
        return dataclasses.replace(update, keep=keep, now=update.now * total, before=update.before * total)

    def _join_batch(self, update: Update, account: Account) -> None:
        self._sum(account, Spread())
        if not account.seen:
            raise InvalidBatch(f"no rank has brought a sample to step {self._step}: every batch is empty or None")
        self.pending.scale(1.0 / account.seen)
        if not self._in_place:
            self._merge(update)

    def _join_probe(self, probe: Probe, own: int, total: int) -> None:
        for vector in probe.vectors():
            for part in vector.view(-1).split(BUCKET):
                part.copy_(self.group.sum(part * (own / total)))

    def _join_anchor(self, anchor: Anchor, account: Account) -> None:
        self._in_place = False
        spread = self._sum(account, anchor.spread)
        if account.seen:
            anchor.learn(spread)

    def _tally(self, spread: Spread) -> Spread:
        """Sum up in the middle of an anchor: each process goes on from its part of the sum."""
        self._in_place = False
        everyone = self._sum(Account(), spread, last=False)
        self.pending.scale(1.0 / self.group.size)
        return everyone

    def _sum(self, account: Account, spread: Spread, *, last: bool = True) -> Spread:
        """Make the pending rows and the account the sums over all processes; return the sum of the spreads."""
        if not self._objectives:
            self._agree()
        if not self._objectives:
            self._open = False
            return spread  # nobody has brought anything
        if self._pending is not None:
            self._pending.make_room(self.layout)
            self._pending.settle()
        head = Head(self._objectives, self._step, account, spread)
        if self._pending is not None:
            head.grown = self._pending.layout != self.layout
            head.partial = self._pending.reach != self.layout
        total = self._post(head, self._pending)
        if total.grown:
            self._agree()
            return self._sum(account, spread, last=last)
        self._open = not last
        return self._take_over(total, account)

    def _take_over(self, total: Head, account: Account) -> Spread:
        """Make the account that of all processes; return the spread of all."""
        account.seen = total.account.seen
        device, dtype = self.objective.parameters[0].device, self._message_type()
        found = (total.account.losses, total.account.before if account.paired else None)
        account.losses, account.before = (None if values is None else values.to(device, dtype) for values in found)
        return total.spread

    def _send_failure(self) -> None:
        """Send what the others are waiting for, with the flag of a failure."""
        if self._objectives:
            self._post(Head(self._objectives, self._step, failed=True), None)
        else:
            self._agree(failed=True)

    def _post(self, head: Head, own: Rows | None) -> Head:
        """Send the head, with all of U if it is small; return the sum of the heads, and leave that of U in ``own``.

        Raises:
            StimulusError: a process has failed, or they are not at the same step; nothing has been written then.
        """
        entries = self._entries_with_head()
        room = head.vector(self._message_type())
        message = torch.zeros(len(room) + entries, dtype=room.dtype)
        message[: len(room)] = room
        if entries and own is not None and not head.grown:
            pack(message[len(room) :], [block.matrix for block in own.blocks])
        message = self.group.sum(message)
        total = head.summed(message[: len(room)])
        if head.failed:
            return total
        if total.failed:
            self._raise_failure(None)
        self._require_same_step(total.step, head.step)
        if not total.grown:
            self._receive(message[len(room) :] if entries else None, own, total)
        return total

    def _entries_with_head(self) -> int:
        """Return how many entries of U travel with the head: all of a small one, none of a large one."""
        entries = sum(
            mask.bit_count() * parameter.numel()
            for mask, parameter in zip(self.layout, self.objective.parameters, strict=True)
        )
        return entries if entries <= BUCKET else 0

    def _receive(self, rows: Tensor | None, own: Rows | None, total: Head) -> None:
        """Put the sum of the rows where U_t is built, and what they reach."""
        muted = own is None
        if own is None:
            own = self.rows if self._in_place else self._blank(self._objectives)
            assert own is not None
            own.make_room(self.layout)
            own.settle()
        reach = [0] * len(self.layout) if muted else own.reach
        self._torn = own is self.rows  # from here on it cannot be taken back
        self._pending = own
        if rows is not None:
            unpack(rows, [block.matrix for block in own.blocks])
        else:
            self._sum_parts(own, muted)
        own.reach = self._union(reach) if total.partial else list(self.layout)

    def _sum_parts(self, own: Rows, muted: bool) -> None:
        """Sum a large U in place, one part after the other."""
        if muted:
            own.scale(0.0)
        for block in own.blocks:
            for part in block.matrix.view(-1).split(BUCKET):
                part.copy_(self.group.sum(part))

    def _union(self, reach: Sequence[int]) -> list[int]:
        """Return what any process reaches."""
        bits = torch.tensor([[float(mask >> s & 1) for s in range(self._objectives)] for mask in reach])
        counts = self.group.sum(bits).tolist()
        return [sum(1 << s for s, count in enumerate(row) if count) for row in counts]

    def _agree(self, *, failed: bool = False) -> None:
        """Agree on S and on the layout of the rows, which together decide the shape of every message from here on.

        Raises:
            InvalidLosses: the processes have different numbers of losses.
        """
        own = None if self._pending is None else (self._pending.objectives, self._pending.layout)
        self._settle_layout(self.group.gather((failed, own)))

    def _settle_layout(self, found: list[tuple[bool, tuple[int, list[int]] | None]]) -> None:
        if any(failed for failed, _ in found):
            if not found[self.group.rank][0]:
                self._raise_failure(None)
            return
        known = {rank: own for rank, (_, own) in enumerate(found) if own is not None}
        counts = {rank: count for rank, (count, _) in known.items()}
        if len({self._objectives or min(counts.values(), default=0), *counts.values()}) > 1:
            self._open = False
            raise InvalidLosses(
                f"losses returned other numbers of losses on other ranks at step {self._step}: "
                f"{', '.join(f'{count} on rank {rank}' for rank, count in counts.items())}"
                f"{f', {self._objectives} before' if self._objectives else ''}; every rank must return the same "
                "objectives"
            )
        for count, layout in known.values():
            self._objectives = count
            self.layout = [old | new for old, new in zip(self.layout, layout, strict=True)]

    def _raise_failure(self, own: BaseException | None) -> None:
        """Exchange what has gone wrong; raise it where it was another process that failed."""
        found = self.group.gather(None if own is None else describe(own))
        self._open = False
        if own is None:
            rank, description = next((rank, one) for rank, one in enumerate(found) if one is not None)
            raise told(rank, description, self._step)

    def _require_same_step(self, total: float, own: float) -> None:
        if total != self.group.size * own:
            raise RankMismatch(
                f"this rank is at step {self._step}, another is not: a rank has left out a step, or gone on after an "
                "error"
            )

    def _message_type(self) -> torch.dtype:
        types = {self.storage.dtype_for(parameter) for parameter in self.objective.parameters}
        return torch.float64 if torch.float64 in types else torch.float32


def _is_empty(batch: Any) -> bool:
    first = next(tensors(batch), None)
    return first is not None and first.dim() > 0 and leading_size(batch) == 0
