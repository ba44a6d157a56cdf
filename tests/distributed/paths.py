"""One problem for the tests of several processes, and the path every method takes on it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from stimulus_moo import METHODS, MultiGradient
from stimulus_moo.data.partition import Partition
from stimulus_moo.data.sources import as_source
from stimulus_moo.methods import Settings
from tests.harness import data, two_heads, two_losses, vector

N, BATCH, PERIOD = 40, 8, 8
COLUMNS = data(N, seed=3)
SETTINGS = Settings(
    source=as_source(COLUMNS), lr=0.05, momentum=0.5, batch_size=BATCH, period=PERIOD, anchor_batch=20, epsilon=0.05
)
#: where the shares of 2 and of 4 processes begin and end; one of the four has none
BOUNDS = {1: (0.0, 1.0), 2: (0.0, 0.3, 1.0), 4: (0.0, 0.4, 0.4, 0.55, 1.0)}


class Uneven(Partition):
    """Shares of very different size."""

    def part(self, count: int) -> slice:
        low, high = BOUNDS[self.size][self.rank : self.rank + 2]
        return slice(round(count * low), round(count * high))


def own_share() -> Partition:
    return Uneven(dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else Uneven()


def batches(steps: int, share: Partition, seed: int = 5) -> list[tuple[Tensor, ...]]:
    generator = torch.Generator().manual_seed(seed)
    orders = [torch.randperm(N, generator=generator)[:BATCH][share.part(BATCH)] for _ in range(steps)]
    return [tuple(column[order] for column in COLUMNS) for order in orders]


@dataclass
class Path:
    """The parameters after every step, the counters after every step, and the last step's record."""

    points: Tensor
    counts: list[tuple[int, int]]
    losses: Tensor
    weights: Tensor


def build(name: str, **options: Any) -> tuple[MultiGradient, torch.optim.Optimizer]:
    """A method of the table on the problem, for this process's share, in the metric of its step where it says so."""
    method, settings = METHODS[name], replace(SETTINGS, partition=own_share())
    model = two_heads()
    optimizer = method.step(model.parameters(), settings)
    options = {"metric": optimizer, **options} if method.metric else options
    return MultiGradient(
        model, two_losses, method.estimator(settings), method.weighting(settings), **options
    ), optimizer


def follow(name: str, steps: int, **options: Any) -> Path:
    """Take a method so many steps."""
    mg, optimizer = build(name, **options)
    points, counts = [], []
    for batch in batches(steps, own_share()):
        step = mg.backward(batch)
        optimizer.step()
        points.append(vector(mg.objective.model))
        counts.append((mg.samples, mg.gradients))
    return Path(torch.stack(points), counts, step.losses, step.weights)
