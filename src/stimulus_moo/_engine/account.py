"""What one update cost and saw."""

from dataclasses import dataclass, field

from torch import Tensor


@dataclass
class Account:
    """What one update cost and saw.

    Attributes:
        samples, gradients: samples drawn and per-sample multi-gradients evaluated.
        losses: means at x_t over all samples evaluated there.
        before: the batch's losses at x_{t-1}, where it was evaluated there too.
    """

    samples: int = 0
    gradients: int = 0
    losses: Tensor | None = None
    before: Tensor | None = None
    seen: int = field(default=0, repr=False)

    def add(self, losses: Tensor, size: int) -> None:
        self.seen += size
        self.losses = losses if self.losses is None else self.losses + (losses - self.losses) * (size / self.seen)
