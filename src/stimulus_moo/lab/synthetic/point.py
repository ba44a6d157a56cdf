"""Model of a problem without a network: a trainable point x."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Point(nn.Module):
    """A trainable point in double precision.

    >>> Point([0.0, 1.0]).x.tolist()
    [0.0, 1.0]
    """

    x: nn.Parameter

    def __init__(self, start: Tensor | list[float]) -> None:
        super().__init__()
        self.x = nn.Parameter(torch.as_tensor(start, dtype=torch.float64).detach().clone())

    def forward(self) -> Tensor:
        """Return x."""
        return self.x


def normal(generator: torch.Generator, *shape: int) -> Tensor:
    """Draw standard normal numbers in double precision."""
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def uniform(generator: torch.Generator, *shape: int) -> Tensor:
    """Draw numbers in [0, 1) in double precision."""
    return torch.rand(shape, generator=generator, dtype=torch.float64)


def centred(noise: Tensor) -> Tensor:
    """Subtract the mean over the samples, so that the noise does not change the mean objective."""
    return noise - noise.mean(0)
