"""How the batch of a step is cut into pieces that are evaluated at once."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from stimulus_moo._engine.observation import Piece
from stimulus_moo.data.batches import leading_size, split
from stimulus_moo.errors import InvalidBatch

if TYPE_CHECKING:
    from stimulus_moo._engine.store import Store


def cut(store: Store, batch: Any, *, halves: bool) -> list[Piece]:
    """Return the batch in pieces of at most ``micro_batch`` samples, on request from its two halves."""
    if not halves:
        whole = own_pieces(store, batch)
        if len(whole) == 1:
            return [Piece(*whole[0])]
        total = sum(size for _, size in whole)
        return [Piece(content, size, size / total, 0, size / total) for content, size in whole]
    parts = [batch]
    with suppress(InvalidBatch):  # a batch that cannot be cut is evaluated whole
        found = list(split(batch, -(-leading_size(batch) // 2)))
        size = store.objective.size
        if sum(map(size, found)) == size(batch):  # no sample is in both
            parts = found
    pieces = [own_pieces(store, part) for part in parts]
    sizes = [sum(size for _, size in part) for part in pieces]
    return [
        Piece(content, size, size / sum(sizes), half, size / sizes[half])
        for half, part in enumerate(pieces)
        for content, size in part
    ]


def own_pieces(store: Store, batch: Any) -> list[tuple[Any, int]]:
    """Return what this process evaluates of a batch; among several processes it may be nothing."""
    alone = store.reducer is None
    if batch is None and alone:
        raise InvalidBatch("this estimator needs a batch at every step: call backward(batch), found None")
    if not alone and (batch is None or store.objective.is_empty(batch)):
        return []
    return store.objective.pieces(batch)
