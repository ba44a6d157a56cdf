"""Reducer for models that FSDP2 has split: FSDP sums and splits the gradients, the processes only keep in step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from stimulus_moo._engine.account import Account
from stimulus_moo._engine.anchor_pass import add_piece
from stimulus_moo._engine.memory import MemoryEstimate
from stimulus_moo._engine.observation import Piece
from stimulus_moo._engine.rows import Rows
from stimulus_moo._engine.storage import Storage
from stimulus_moo._engine.store import Store
from stimulus_moo._engine.transaction import Transaction
from stimulus_moo.anchors import Anchor
from stimulus_moo.anchors.base import Tally
from stimulus_moo.anchors.variance import Spread
from stimulus_moo.data.batches import cut_at, leading_size
from stimulus_moo.data.partition import ALL
from stimulus_moo.distributed.group import Group
from stimulus_moo.distributed.head import Head
from stimulus_moo.distributed.reducer import AllReduce, as_rows
from stimulus_moo.distributed.split_rows import PlacedRows
from stimulus_moo.errors import InvalidBatch, InvalidLosses


class FullyShard(AllReduce):
    """Lets all processes evaluate equally many pieces, each of which they differentiate together.

    Every forward and backward pass is a collective of FSDP. A process with fewer pieces than another evaluates one
    again and multiplies its losses by 0. FSDP averages over the processes, so the losses of process r are multiplied by
    R n_r / sum n_r: the gradient is then the mean over the samples of all. A message of a few numbers before each
    evaluation, and one between forward and backward passes, say whether a process has failed.
    """

    sharded = True

    def __init__(self, group: Group, storage: Storage, replicas: int) -> None:
        super().__init__(group, storage)
        self._replicas = replicas
        self.new_rows = partial(PlacedRows, group, replicas)
        self._samples = 0  # of all processes, in the pieces that were aligned last
        self._stand_in: Piece | None = None  # what a process evaluates that has nothing of its own

    def gather(self, own: Any) -> list[Any]:
        """Return a value of every process."""
        self._keep_step()
        return self.group.gather(own)

    def align(self, transaction: Transaction, pieces: list[Piece]) -> list[Piece]:
        """Return as many pieces as the process with the most has; the two halves of a batch are never mixed."""
        if pieces:
            self._stand_in = pieces[-1]
        own = [(piece.half, piece.size) for piece in pieces]
        found = self._keep_step(single=(len(own), self._stand_in is not None, *(own[0] if own else (0, 0))))
        everyone = [[(half, size)] if count else [] for count, _, half, size in found]
        if any(count > 1 for count, *_ in found):
            everyone = self.group.gather(own)
        if any(everyone):
            self._lend([bool(able) for _, able, *_ in found])
        return self._aligned(pieces, everyone)

    def _aligned(self, pieces: list[Piece], everyone: list[list[tuple[int, int]]]) -> list[Piece]:
        """Return the pieces and stand-ins, given the halves and sizes of the pieces of every process."""
        self._samples = sum(size for one in everyone for _, size in one)
        found: list[Piece] = []
        for half in (0, 1):
            sizes = [[size for k, size in one if k == half] for one in everyone]
            total = sum(map(sum, sizes))
            own = [piece for piece in pieces if piece.half == half]
            for k in range(max(map(len, sizes))):
                together = sum(one[k] for one in sizes if k < len(one))
                piece = own[k] if k < len(own) else self._stand_in
                assert piece is not None
                size = piece.size if k < len(own) else 0
                found.append(
                    piece._replace(
                        size=size,
                        fraction=together / self._samples,
                        half=half,
                        fraction_of_half=together / total,
                        together=together,
                        share=self.group.size * size / together,
                    )
                )
        return found

    def _lend(self, able: list[bool]) -> None:
        """Give a stand-in to the processes that have none, since they have never had a piece."""
        if not all(able):
            lender = able.index(True)
            lent = self.group.gather(self._stand_in if self.group.rank == lender else None)[lender]
            self._stand_in = self._stand_in or lent

    def factor(self, own: int) -> float:
        """Return the samples of all processes: gradients are means over them already."""
        return float(self._samples)

    def batches_of(self, anchor: Anchor, tally: Tally | None) -> Iterator[Any]:
        """Yield this process's batches of an anchor; where all processes draw the same, its part of each."""
        if anchor.divided:
            yield from anchor.batches(self.partition, tally)
            return
        for batch in anchor.batches(ALL, tally):
            yield self._part(batch)

    def target(self, transaction: Transaction, masks: Callable[[], list[int]]) -> Rows:
        """Make sure that all processes have S losses to differentiate; return the rows."""
        self._keep_step(losses=transaction.objectives)
        self._objectives = transaction.objectives
        return as_rows(transaction.open_rows(masks))

    def sum(self, transaction: Transaction, account: Account, spread: Spread, *, last: bool = True) -> Spread:
        """Wait for the others, and make the account that of all processes."""
        if transaction.update.anchor is not None:
            while pieces := self.align(transaction, []):  # others have more batches of the anchor
                for piece in pieces:
                    add_piece(transaction, piece, Account(), None)
        self._awaited = not last  # else: nothing but a backward pass, itself a collective, came after the last message
        if transaction.pending is None:
            return spread  # no process has brought anything
        counted = transaction.store.objective.counts is not None
        head = Head(self._objectives, transaction.step, account, counted=counted)
        total = head.summed(self.group)
        rows = as_rows(transaction.rows)
        if transaction.form.sketched:  # of its columns: their sum is the sketch of all
            self._sum_rows(rows)
            rows.scale(1.0 / self._replicas)
        self._take_over(total, account, transaction)
        return spread  # which is the same in all processes

    def tally(self, transaction: Transaction, spread: Spread) -> Spread:
        """Return the spread, which is the same in all processes."""
        return spread

    def sum_vectors(self, vectors: Sequence[Tensor], share: float) -> None:
        """Do nothing: vectors of gradients are means over all samples already."""

    def clear(self) -> None:
        """Forget everything the processes have agreed on."""
        super().clear()
        self._stand_in = None

    def memory(self, estimate: MemoryEstimate, entries: int) -> MemoryEstimate:
        """Return the estimate, which is of this process's shards; what FSDP gathers is part of the model."""
        return estimate

    def _open(self, transaction: Transaction) -> None:
        """Send nothing: every message of a step begins alike."""

    def _gathers_next(self, store: Store) -> bool:
        """Return False: a failure is told by the message with which everything begins."""
        return False

    def _send_failure(self, store: Store) -> None:
        self.group.sum(torch.tensor([1.0, *[0.0] * (3 + 4 * self.group.size)], dtype=torch.float64))

    def _keep_step(self, losses: int = 0, single: tuple[int, ...] = (0, 0, 0, 0)) -> list[list[int]]:
        """Raise on all processes where one has failed, is at another step or has another number of losses.

        Return the four numbers ``single`` of every process.
        """
        own, rank = torch.zeros(1 + self.group.size, 4, dtype=torch.float64), self.group.rank
        own[0] = torch.tensor([0.0, self._step, losses, losses**2])
        own[1 + rank] = torch.tensor(single)
        (failed, step, total, squares), *found = self.group.sum(own.view(-1)).view(-1, 4).tolist()
        if failed:
            self._raise_failure(None)
        self._require_same_step(step, self._step)
        if total**2 != self.group.size * squares:
            self._awaited = False
            raise InvalidLosses(
                f"losses returned {losses} losses on rank {self.group.rank} at step {self._step} and another number on "
                "another rank; every rank must return the same ones"
            )
        return [[int(number) for number in numbers] for numbers in found]

    def _part(self, batch: Any) -> Any:
        """Return this process's part of a batch that all have, None if that is nothing."""
        try:
            part = self.partition.part(leading_size(batch))
            first, _ = cut_at(batch, part.stop)
            return None if first is None else cut_at(first, part.start)[1]
        except InvalidBatch:  # one that cannot be cut goes to the first process
            return batch if self.group.rank == 0 else None
