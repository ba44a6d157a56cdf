"""What one update cost and saw."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass
class Account:
    """What one update cost and saw.

    Attributes:
        samples, gradients: samples drawn and per-sample multi-gradients evaluated.
        losses: means at x_t over all samples evaluated there.
        before: the batch's losses at x_{t-1}, where it was evaluated there too.
        counts: with ``counts=``, over how many samples each mean is; a mean over none is NaN.
    """

    samples: int = 0
    gradients: int = 0
    losses: Tensor | None = None
    before: Tensor | None = None
    seen: int = field(default=0, repr=False)
    counts: list[float] | None = field(default=None, repr=False)

    def add(self, losses: Tensor, size: int, counts: Sequence[float] | None = None) -> None:
        self.seen += size
        if counts is not None:
            self._add_counted(losses, counts)
            return
        self.losses = losses if self.losses is None else self.losses + (losses - self.losses) * (size / self.seen)

    def _add_counted(self, losses: Tensor, counts: Sequence[float]) -> None:
        """Update the means of the losses that have a count."""
        old = [0.0] * len(counts) if self.counts is None else self.counts
        self.counts = [before + new for before, new in zip(old, counts, strict=True)]
        shares = losses.new_tensor(
            [new / total if new else 0.0 for new, total in zip(counts, self.counts, strict=True)]
        )
        means = torch.full_like(losses, torch.nan) if self.losses is None else self.losses
        mixed = torch.where(shares == 1.0, losses, means + (losses - means) * shares)
        self.losses = torch.where(shares > 0.0, mixed, means)
