"""The evaluation of an anchor: the sum over all its batches at x_t, then their mean, as one update of U."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from stimulus_moo._engine.account import Account
from stimulus_moo._engine.counted import AnchorCounts
from stimulus_moo._engine.culprit import find_culprit
from stimulus_moo._engine.observation import Piece, Probe
from stimulus_moo._engine.pieces import own_pieces
from stimulus_moo.data.partition import ALL
from stimulus_moo.errors import InvalidBatch

if TYPE_CHECKING:
    from stimulus_moo._engine.transaction import Transaction


def evaluate_anchor(transaction: Transaction) -> None:
    """Build U_t from the batches of the anchor."""
    anchor, account, store = transaction.update.anchor, transaction.account, transaction.store
    assert anchor is not None
    reducer = store.reducer
    counts = None if store.objective.counts is None else AnchorCounts(transaction)
    sizes = [0, 0]  # of the current pair
    tally = transaction.tally
    batches = anchor.batches(ALL, tally) if reducer is None else reducer.batches_of(anchor, tally)
    for batch in batches:
        found, (pair, half) = own_pieces(store, batch), anchor.place or (None, 0)
        probe = None if pair is None else transaction.probe
        if probe is not None and not half:
            probe.begin(halves=True)
        own = sum(size for _, size in found)
        pieces = [Piece(content, size, half=half, fraction_of_half=size / own) for content, size in found]
        if reducer is not None:
            pieces = reducer.align(transaction, pieces)
        sizes[half] = sum(piece.samples for piece in pieces)
        for piece in pieces if counts is None else counts.scaled(pieces, probed=probe is not None):
            add_piece(transaction, piece, account, probe)
        if probe is not None and pair is not None and half:
            anchor.spread = anchor.spread.add(pair, sum(sizes) * probe.end(sizes))
    if counts is not None:
        counts.check()
    seen = account.losses, account.seen
    spread = anchor.spread if reducer is None else reducer.sum(transaction, account, anchor.spread)
    if reducer is not None:
        store.undivided = _undivided(*seen, account, reducer.group.size)
    if transaction.pending is None or not account.seen:
        raise InvalidBatch("the anchor gave no batches: it is empty or exhausted; pass a DataLoader or a list")
    anchor.learn(spread)
    account.samples = account.gradients = account.seen  # of all processes
    if counts is None:
        transaction.pending.scale(transaction.update.now / account.seen)
    else:
        counts.divide()
    transaction.merge(transaction.update.keep)


def add_piece(transaction: Transaction, piece: Piece, account: Account, probe: Probe | None) -> None:
    """Add a piece of the anchor to the sums; the one row of kept weights is checked after every piece."""
    transaction.accumulate(piece, float(piece.samples), account, probe)
    account.samples = account.gradients = account.seen
    if transaction.form.weighted and not transaction.rows.finite(transaction.rows.matrices()):
        raise find_culprit(transaction, [piece])


def _undivided(losses: Tensor | None, seen: int, everyone: Account, processes: int) -> bool:
    """Return whether every process has probably seen the same samples: its mean losses are those of all together."""
    if losses is None or everyone.losses is None or seen * processes != everyone.seen:
        return False
    return torch.allclose(losses.double().cpu(), everyone.losses.double().cpu(), rtol=1e-6, atol=0.0)
