"""How the batch of a step is cut into pieces that are evaluated at once."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from stimulus_moo._engine.observation import Piece
from stimulus_moo.data.batches import cut_at, leading_size
from stimulus_moo.errors import InvalidBatch

if TYPE_CHECKING:
    from stimulus_moo._engine.store import Store


class Cut(NamedTuple):
    """The pieces of a batch, and the sizes of its two halves over all processes, the second 0 if it was not halved."""

    pieces: list[Piece]
    halves: tuple[int, int]


def cut(store: Store, batch: Any, *, halves: bool) -> Cut:
    """Return the batch in pieces of at most ``micro_batch`` samples, on request from its two halves.

    The first half of a batch of several processes are its first samples in the order of the processes.
    """
    if halves:
        return _cut_in_halves(store, batch)
    whole = own_pieces(store, batch)
    total = sum(size for _, size in whole)
    if len(whole) == 1:
        return Cut([Piece(*whole[0])], (total, 0))
    return Cut([Piece(content, size, size / total, 0, size / total) for content, size in whole], (total, 0))


def _cut_in_halves(store: Store, batch: Any) -> Cut:
    reducer, parts = store.reducer, [(0, batch)]
    own_length = _length(store, batch)
    lengths = [own_length] if reducer is None else reducer.gather(own_length)
    known = [length for length in lengths if length is not None]
    if len(known) == len(lengths):
        before = 0 if reducer is None else sum(known[: reducer.group.rank])
        middle = -(-sum(known) // 2)
        parts = [(half, part) for half, part in enumerate(cut_at(batch, middle - before)) if part is not None]
    pieces = [(half, *piece) for half, part in parts for piece in own_pieces(store, part)]
    own = [sum(size for half, _, size in pieces if half == k) for k in (0, 1)]
    everyone = [own] if reducer is None else reducer.gather(own)
    total = sum(first for first, _ in everyone), sum(second for _, second in everyone)
    scale = sum(total) / sum(own) if pieces else 1.0  # the vectors of a process are multiplied by the inverse
    found = [
        Piece(content, size, size / sum(own), half, scale * (size / total[half])) for half, content, size in pieces
    ]
    return Cut(found, total)


def _length(store: Store, batch: Any) -> int | None:
    """Return the leading dimension of this process's share; None if it cannot be cut and is evaluated whole."""
    if store.reducer is not None and (batch is None or store.objective.is_empty(batch)):
        return 0
    with suppress(InvalidBatch):
        size, length = store.objective.size(batch), leading_size(batch)
        found = [part for part in cut_at(batch, -(-length // 2)) if part is not None]
        return length if sum(map(store.objective.size, found)) == size else None  # no sample is in both
    return None


def own_pieces(store: Store, batch: Any) -> list[tuple[Any, int]]:
    """Return what this process evaluates of a batch; among several processes it may be nothing."""
    alone = store.reducer is None
    if batch is None and alone:
        raise InvalidBatch("this estimator needs a batch at every step: call backward(batch), found None")
    if not alone and (batch is None or store.objective.is_empty(batch)):
        return []
    return store.objective.pieces(batch)
