"""Weighs the pieces of a batch, of an anchor and of several processes per objective, where counts are given.

A sum over pieces weighs each piece p by its size n_p. The loss of objective s in it is multiplied by
(c_p^s / n_p) (N / C^s), so that the same sum is the mean sum_p c_p^s F_p^s / C^s over the samples that have a label.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from stimulus_moo._engine.observation import Piece
from stimulus_moo._engine.pieces import own_pieces
from stimulus_moo._engine.rows import Rows
from stimulus_moo.data.partition import ALL
from stimulus_moo.errors import InvalidBatch

if TYPE_CHECKING:
    from stimulus_moo._engine.transaction import Transaction


def require_labels(totals: Sequence[float], step: int) -> None:
    """Raise InvalidBatch where no objective has a sample."""
    if not any(totals):
        raise InvalidBatch(
            f"counts returned 0 for all {len(totals)} objectives over everything that step {step} evaluates; leave "
            "out batches without any label"
        )


def summed(found: Sequence[Sequence[float]]) -> list[float]:
    """Return the sums over several lists of counts; raise InvalidBatch where their lengths differ."""
    lengths = sorted({len(one) for one in found})
    if len(lengths) > 1:
        raise InvalidBatch(f"counts must return one number per loss, found {lengths[0]} and {lengths[-1]}")
    return [math.fsum(column) for column in zip(*found, strict=True)]


def scales_of(counts: Sequence[float], size: int, totals: Sequence[float], samples: float) -> list[float] | None:
    """Return what the losses of a piece are multiplied by, 0 where a count is 0; None where all are 1."""
    found = [c * samples / (max(1, size) * total) if c else 0.0 for c, total in zip(counts, totals, strict=True)]
    return None if all(scale == 1.0 for scale in found) else found


def count_pieces(transaction: Transaction, pieces: list[Piece]) -> list[Piece]:
    """Return the pieces of a batch with their counts and scales."""
    objective, reducer = transaction.store.objective, transaction.store.reducer
    found = [objective.count_labels(piece.content) for piece in pieces]
    totals, samples = summed(found), float(sum(piece.size for piece in pieces))
    if reducer is not None:
        *totals, samples = reducer.sum_counts([*totals, samples] if found else None) or [0.0]
    if not samples:
        return pieces  # no process has brought anything
    require_labels(totals, transaction.step)
    return [
        piece._replace(counts=counts, scales=scales_of(counts, piece.size, totals, samples))
        for piece, counts in zip(pieces, found, strict=True)
    ]


class AnchorCounts:
    """Counts and scales the batches of an anchor.

    Where all S rows are summed, every row is divided by its own total at the end. The one loss lambda . F needs the
    totals of all batches and processes beforehand: a first pass over the anchor, from the same random state, only
    counts.
    """

    def __init__(self, transaction: Transaction) -> None:
        self._transaction, reducer = transaction, transaction.store.reducer
        self._own = self._first_pass() if transaction.form.weighted else None  # totals, and the number of samples
        totals = self._own if reducer is None else reducer.sum_counts(self._own)
        if totals is not None and totals[-1]:
            require_labels(totals[:-1], transaction.step)
        self._totals = totals

    def scaled(self, pieces: list[Piece], *, probed: bool) -> list[Piece]:
        """Return the pieces of one batch with their counts and scales, and those for the probe if it looks at them."""
        objective, totals = self._transaction.store.objective, self._totals
        found = [objective.count_labels(piece.content) for piece in pieces]
        if totals is not None:
            return [
                piece._replace(counts=counts, scales=scales_of(counts, piece.size, totals[:-1], totals[-1]))
                for piece, counts in zip(pieces, found, strict=True)
            ]
        sums, size = self._of_batch(found, pieces) if probed else ([], 0.0)
        noise = [size / total if total else 0.0 for total in sums] or None  # to means over this batch
        return [
            piece._replace(
                counts=counts, scales=scales_of(counts, piece.size, [1.0] * len(counts), 1.0), noise_scales=noise
            )
            for piece, counts in zip(pieces, found, strict=True)
        ]

    def _of_batch(self, found: Sequence[Sequence[float]], pieces: Sequence[Piece]) -> tuple[list[float], float]:
        """Return the counts and the number of samples of a batch, with those of processes that evaluate it together."""
        own = [counts for counts, piece in zip(found, pieces, strict=True) if piece.size]
        sums, size = summed(own), float(sum(piece.size for piece in pieces))
        store = self._transaction.store
        if store.reducer is None or store.objective.placement.independent:
            return sums, size
        *sums, size = store.reducer.sum_counts([*sums, size] if own else None) or [0.0]
        return sums, size

    def check(self) -> None:
        """Raise InvalidBatch where this process's second pass had other samples than the first."""
        account = self._transaction.account
        found = [*(account.counts or []), float(account.seen)]
        if self._own is not None and account.seen and not all(map(math.isclose, found, self._own)):
            raise InvalidBatch(
                f"the anchor must give the same samples when it is iterated again, found counts {found[:-1]} after "
                f"{self._own[:-1]}; under kept weights, counts= takes one pass to count and one to evaluate"
            )

    def divide(self) -> None:
        """Make the sums over all batches and processes means."""
        transaction, account = self._transaction, self._transaction.account
        assert account.counts is not None
        require_labels(account.counts, transaction.step)
        rows, now = transaction.rows, transaction.update.now
        if self._totals is not None:
            rows.scale(now / account.seen)
        else:
            assert isinstance(rows, Rows)
            rows.scale_each([now / count if count else 0.0 for count in account.counts])

    def _first_pass(self) -> list[float] | None:
        """Return the totals of this process and its number of samples; None if it has none."""
        transaction, store = self._transaction, self._transaction.store
        anchor, found, samples = transaction.update.anchor, [], 0
        assert anchor is not None
        state, snapshot = anchor.state_dict(), store.objective.snapshot()
        try:
            reducer = store.reducer
            for batch in anchor.batches(ALL) if reducer is None else reducer.batches_of(anchor, None):
                for content, size in own_pieces(store, batch):
                    found.append(store.objective.count_labels(content))
                    samples += size
        finally:
            anchor.load_state_dict(state)
            snapshot.restore()
        return [*summed(found), float(samples)] if found else None
