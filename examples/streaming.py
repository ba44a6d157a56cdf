"""Streaming data with STIMULUS+: samples never repeat, so an anchor cannot be a full pass.

    python examples/streaming.py

Needs no packages beyond the library. A stream is any endless iterable of samples. STIMULUS+ draws as many samples for
an anchor as the target accuracy ``epsilon`` requires. Period and batch size must be given, because there is no n from
which to derive them.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.utils.data import IterableDataset

from stimulus_moo import fit

TRUTH = torch.tensor([[1.0, -2.0, 0.5], [0.5, 1.0, -1.0]])  # two targets that one linear output cannot both fit


class Sensor(IterableDataset):
    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        generator = torch.Generator().manual_seed(0)
        while True:
            x = torch.randn(3, generator=generator)
            yield x, TRUTH @ x + 0.1 * torch.randn(2, generator=generator)


def losses(model: nn.Module, batch: list[Tensor]) -> Tensor:
    inputs, targets = batch
    return (model(inputs) - targets).square().mean(0)  # one output for both targets


def main(steps: int = 150) -> dict[str, float]:
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    held_out = torch.randn(1000, 3)
    result = fit(
        model,
        losses,
        Sensor(),
        method="stimulus+",
        lr=0.1,
        steps=steps,
        batch_size=16,
        period=16,
        epsilon=0.05,
        evaluation=[(held_out, held_out @ TRUTH.T)],
        progress=False,
    )
    print("losses", result.losses, "stationarity", result.stationarity)
    print("samples drawn", result.samples, "gradients", result.gradients)
    return {"stationarity": result.stationarity}


if __name__ == "__main__":
    main()
