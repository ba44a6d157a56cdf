"""Vectorised operations on ragged lists: sums, softmax, ranks and ideal gains within each list of a batch."""

from __future__ import annotations

import math

import torch
from torch import Tensor


class Segments:
    """The lists of a batch, as tensors.

    Args:
        lengths: documents per list; empty lists are allowed.
        rows: total number of rows.
    """

    def __init__(self, lengths: Tensor, rows: int) -> None:
        self.lengths = lengths
        self.count = len(lengths)
        self.list = torch.repeat_interleave(torch.arange(self.count, device=lengths.device), lengths, output_size=rows)
        self.starts = lengths.cumsum(0) - lengths
        self.position = torch.arange(rows, device=lengths.device) - self.starts[self.list]  # 0, 1, ... in its list

    def sums(self, values: Tensor) -> Tensor:
        """Return the sum of row values over each list, 0 for an empty list."""
        return values.new_zeros((self.count, *values.shape[1:])).index_add_(0, self.list, values)

    def largest(self, values: Tensor) -> Tensor:
        """Return the largest value of each list, minus infinity for an empty list."""
        index = self.list.view(-1, *[1] * (values.dim() - 1)).expand_as(values)
        empty = values.new_full((self.count, *values.shape[1:]), -torch.inf)
        return empty.scatter_reduce_(0, index, values, "amax")

    def log_softmax(self, values: Tensor) -> Tensor:
        """Return the logarithm of the softmax over each list."""
        shifted = values - self.largest(values)[self.list]
        return shifted - self.sums(shifted.exp()).log()[self.list]

    def differ(self, labels: Tensor) -> Tensor:
        """Return which lists have at least two different grades, per label."""
        return self.largest(labels) > -self.largest(-labels)

    def order(self, values: Tensor) -> Tensor:
        """Return the rows, list by list, sorted by descending value in each column; ties keep the order of the rows."""
        by_value = values.argsort(dim=0, descending=True, stable=True)
        by_list = self.list[by_value].argsort(dim=0, stable=True)
        return by_value.gather(0, by_list)

    def ranks(self, scores: Tensor) -> Tensor:
        """Return the rank of each row in its list, 0 for the highest score; ties keep the order of the rows."""
        return torch.empty_like(self.position).scatter_(0, self.order(scores), self.position)

    def gains(self, labels: Tensor, k: int | None = None) -> tuple[Tensor, Tensor]:
        """Return the gains 2^y - 1 and each list's ideal DCG@k, both scaled by 2^-max(y) to avoid overflow."""
        top = self.largest(labels)[self.list]
        gains = -torch.exp2(labels - top) * torch.expm1(-labels * math.log(2.0))
        ranked = gains.gather(0, self.order(labels))
        return gains, self.sums(ranked * discounts(self.position, k).to(ranked)[:, None])


def discounts(ranks: Tensor, k: int | None = None) -> Tensor:
    """Return 1 / log2(2 + rank) for ranks counted from 0, and 0 for ranks of at least k."""
    found = 1.0 / torch.log2(ranks.to(torch.float64) + 2.0)
    return found if k is None else torch.where(ranks < k, found, 0.0)
