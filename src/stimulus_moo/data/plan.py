"""The batches of a training run, as a function of the seed and the step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from stimulus_moo.data.partition import Partition
from stimulus_moo.data.sources import Source


class BatchPlan:
    """Gives the batch of step k as a function of the seed and k alone, so that a resumed run sees the same batches.

    Every process has its part of the same batch, which may be empty: then ``at`` returns None. A stream is read in full
    by each process.
    """

    def __init__(self, source: Source, size: int, seed: int, partition: Partition) -> None:
        self.source, self.size, self.seed = source, size, seed
        self.part = partition.part(size)  # this process's samples of every batch
        self._next = -1  # the step whose batch the iterator gives next
        self._iterator: Iterator[Any] = iter(())

    def at(self, step: int) -> Any:
        """Return the batch of a step."""
        if not self.source.finite:
            return self.source.draw(self.source.shuffled(torch.Generator()), 0, self.size, self.part)
        if self.part.start == self.part.stop:
            return None
        if step != self._next:
            self._iterator = self.source.follow(self._indices(step))
        self._next = -1  # the position of an iterator that raises is unknown
        batch = next(self._iterator)
        self._next = step + 1
        return batch

    def _indices(self, step: int) -> Iterator[Tensor]:
        """Yield the indices of the batches from a step on, forever."""
        size = len(self.source)
        epoch, slot = divmod(step, size // self.size)
        while True:
            generator = torch.Generator().manual_seed((self.seed * 1_000_003 + epoch) % (1 << 64))
            order = torch.randperm(size, generator=generator)
            for indices in order[slot * self.size : size // self.size * self.size].split(self.size):
                yield indices[self.part]
            epoch, slot = epoch + 1, 0
