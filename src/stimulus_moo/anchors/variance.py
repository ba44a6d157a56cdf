"""Variance of one sample's gradient, estimated from pairs of an anchor's pieces."""

import math
import statistics
from dataclasses import dataclass
from typing import NamedTuple

#: number of groups of pairs, and the largest mean of a group in multiples of their median
GROUPS, CLIP = 8, 3.0


class Place(NamedTuple):
    """The pair of a piece, counted over all processes, and which half of the pair it is."""

    pair: int
    half: int


@dataclass(frozen=True)
class Spread:
    """Sums over pairs of an anchor's pieces, from which the variance of one sample follows.

    Pieces of m and m' samples satisfy E[m m' / (m + m') ||g - g'||^2] = sigma^2 for any m and m'. Pairs are assigned to
    groups in turn; the estimate is the mean of the groups' means, each clipped at a multiple of their median. So a few
    samples with huge gradients, which would require the full data set at every anchor, affect only their own group.
    Spreads of several processes can be added.
    """

    pairs: int = 0
    sums: tuple[float, ...] = (0.0,) * GROUPS

    def add(self, pair: int, found: float) -> "Spread":
        """Return the spread with the value of one more pair."""
        group = pair % GROUPS
        return Spread(self.pairs + 1, (*self.sums[:group], self.sums[group] + found, *self.sums[group + 1 :]))

    def variance(self) -> float | None:
        """Return sigma^2, or None without any pair."""
        counts = [len(range(group, self.pairs, GROUPS)) for group in range(GROUPS)]
        means = [total / count for total, count in zip(self.sums, counts, strict=True) if count]
        if not means:
            return None
        most = CLIP * statistics.median(means) or math.inf  # a median of 0 says nothing about the other groups
        return statistics.fmean(min(mean, most) for mean in means)
