"""Squared norms in float64, from sums over short pieces in the tensors' own precision."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

#: entries that are summed in their own precision before float64 takes over
PIECE = 1 << 12

_LONG_PIECE = 1 << 18

#: below this a squared norm in float32 may have lost entries to underflow
_TINY = 1e-30

#: up to this many entries all differences are taken at once, which is faster
_SMALL = 1 << 20


def sq_norm_of(vectors: Sequence[Tensor]) -> float:
    """Return the sum of all squared entries.

    Asked for a norm in float64, torch converts every entry, which takes twenty times as long as reading them.

    >>> import torch
    >>> sq_norm_of([torch.tensor([3.0, 4.0])]), sq_norm_of([torch.tensor([2.0**100, 0.0])]) == 2.0**200
    (25.0, True)
    """
    if vectors and not vectors[0].is_cpu:
        return _one_transfer(vectors)
    large = [vector for vector in vectors if vector.numel() > PIECE and vector.dtype is torch.float32]
    small = [vector for vector in vectors if vector.numel() <= PIECE or vector.dtype is not torch.float32]
    total = sum(map(_sum_of_pieces, large))
    if len(small) == 1:
        wide = small[0].detach().double().reshape(-1)
        total += float(wide @ wide)
    elif small:
        norms = torch._foreach_norm([vector.detach() for vector in small], 2, dtype=torch.float64)
        lengths = [float(norm) for norm in norms]
        total += sum(length * length for length in lengths)
    return float(total)


def _one_transfer(vectors: Sequence[Tensor]) -> float:
    """Return the sum for an accelerator, which converts entries as it reads them but must be waited for: once each."""
    norms: dict[torch.device, list[Tensor]] = {}
    for norm in torch._foreach_norm([vector.detach() for vector in vectors], 2, dtype=torch.float64):
        norms.setdefault(norm.device, []).append(norm)
    return sum(float(torch.stack(found).square().sum()) for found in norms.values())


def distance(xs: Sequence[Tensor], ys: Sequence[Tensor]) -> float:
    """Return the Euclidean norm of x - y over all tensors; of large tensors, one difference exists at a time."""
    if sum(map(Tensor.numel, xs)) <= _SMALL:
        return math.sqrt(sq_norm_of(torch._foreach_sub([x.detach() for x in xs], list(ys)))) if xs else 0.0
    return math.sqrt(sum(sq_norm_of([x.detach() - y]) for x, y in zip(xs, ys, strict=True)))


def is_long(vector: Tensor) -> bool:
    """Return whether ``squares_of`` applies: the vector is of float32 and has more entries than a piece."""
    return vector.dtype is torch.float32 and vector.is_cpu and vector.numel() > PIECE


def squares_of(vector: Tensor) -> list[Tensor]:
    """Return the squared norms of long pieces of a contiguous vector, as dot products, which are twice as fast.

    A dot product sums up some dozen parts side by side, each of which is no longer than a few pieces.
    """
    flat = vector.detach().view(-1)
    pieces = flat.split(_LONG_PIECE) if len(flat) > _LONG_PIECE else (flat,)
    return [torch.dot(piece, piece) for piece in pieces]


def known_squares(squares: float) -> bool:
    """Return whether a squared norm, as the sum of those of pieces, has lost nothing to overflow or underflow."""
    return _TINY < squares < math.inf


def _sum_of_pieces(vector: Tensor) -> float:
    flat = vector.detach().reshape(-1)
    whole = len(flat) // PIECE * PIECE
    norms = torch.linalg.vector_norm(flat[:whole].view(-1, PIECE), dim=1)
    found = float(norms.double().square().sum()) + sq_norm_of([flat[whole:]])
    return found if known_squares(found) else float(torch.linalg.vector_norm(flat, dtype=torch.float64).square())
