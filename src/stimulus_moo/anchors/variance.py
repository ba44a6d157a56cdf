"""Variance of one sample's gradient, estimated from pairs of an anchor's pieces."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from typing import NamedTuple

#: pairs of pieces are dealt to so many groups, and a group's mean counts for at most so many times their median
GROUPS, CLIP = 8, 3.0


class Place(NamedTuple):
    """Where a piece of an anchor belongs: the pair, counted over all processes, and which of the two it is."""

    pair: int
    half: int


@dataclass(frozen=True)
class Spread:
    """What pairs of an anchor's pieces say about the variance of one sample.

    For pieces of m and m' samples E[m m' / (m + m') ||g - g'||^2] = sigma^2, whatever m and m' are. Pairs are dealt to
    groups in turn, and what counts is the mean of the groups' means, each clipped at a multiple of their median: a few
    samples with huge gradients, which would ask for the full data set at every anchor, spoil their own group only.
    Spreads of several processes can be added up.
    """

    pairs: int = 0
    sums: tuple[float, ...] = (0.0,) * GROUPS

    def add(self, pair: int, found: float) -> Spread:
        """Return the spread with what one more pair says."""
        group = pair % GROUPS
        return Spread(self.pairs + 1, (*self.sums[:group], self.sums[group] + found, *self.sums[group + 1 :]))

    def variance(self) -> float | None:
        """Return sigma^2, or None where there is no pair."""
        counts = [len(range(group, self.pairs, GROUPS)) for group in range(GROUPS)]
        means = [total / count for total, count in zip(self.sums, counts, strict=True) if count]
        if not means:
            return None
        most = CLIP * statistics.median(means) or math.inf  # where most pairs are alike the others are all there is
        return statistics.fmean(min(mean, most) for mean in means)
