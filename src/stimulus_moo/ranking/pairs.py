"""Sums over pairs of documents in each list, computed in blocks to bound the memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from stimulus_moo.ranking.segments import Segments

_PAIRS = 1 << 20  # pairs per block


def blocks(segments: Segments) -> Iterator[tuple[slice, Tensor, Tensor]]:
    """Yield blocks of rows i, the padded rows j of their lists, and the mask of valid j."""
    rows = len(segments.list)
    if rows == 0:
        return
    start, length = segments.starts[segments.list], segments.lengths[segments.list]
    step = max(1, _PAIRS // int(length.max()))
    for first in range(0, rows, step):
        block = slice(first, first + step)
        offsets = torch.arange(int(length[block].max()), device=length.device)
        real = offsets < length[block, None]
        yield block, start[block, None] + torch.where(real, offsets, 0), real


def logistic_pairs(
    scores: Tensor,
    levels: Tensor,
    segments: Segments,
    gap: Callable[[Tensor], Tensor],
    factor: Callable[[slice, Tensor], Tensor] | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return weighted sums of the logistic loss over pairs.

    .. code-block:: text

        sum over j of  w_ij log(1 + exp(s_j - s_i)),    w_ij = factor_ij gap(level_i - level_j)

    Returns:
        For each row i and label this sum, the derivative of all rows' sums with respect to s_i, and sum_j w_ij.
    """
    values, slopes, weights = (torch.zeros_like(levels) for _ in range(3))
    for block, partners, real in blocks(segments):
        margin = scores[block, None] - scores[partners]
        weight = real.to(scores) if factor is None else factor(block, partners) * real
        difference = levels[block, None] - levels[partners]
        above, below = gap(difference), gap(-difference)
        values[block] = _along(weight * torch.nn.functional.softplus(-margin), above)
        slopes[block] = _along(weight * margin.sigmoid(), below) - _along(weight * (-margin).sigmoid(), above)
        weights[block] = _along(weight, above)
    return values, slopes, weights


def soft_ranks(scores: Tensor, segments: Segments, temperature: float) -> Tensor:
    """Return 1 + sum over j != i of sigmoid((s_j - s_i) / T) for each row i."""
    ranks = torch.empty_like(scores)
    for block, partners, real in blocks(segments):
        margin = (scores[partners] - scores[block, None]) / temperature
        ranks[block] = 0.5 + (margin.sigmoid() * real).sum(1)  # j = i is among them, with 1/2
    return ranks


def soft_rank_slopes(scores: Tensor, slopes: Tensor, segments: Segments, temperature: float) -> Tensor:
    """Convert derivatives with respect to soft ranks, per row and label, to derivatives with respect to scores."""
    found = torch.empty_like(slopes)
    for block, partners, real in blocks(segments):
        share = ((scores[partners] - scores[block, None]) / temperature).sigmoid()
        bend = share * (1.0 - share) * real / temperature
        found[block] = _along(bend, slopes[partners]) - bend.sum(1, keepdim=True) * slopes[block]
    return found


def _along(pairs: Tensor, labels: Tensor) -> Tensor:
    return torch.bmm(pairs[:, None], labels)[:, 0]
