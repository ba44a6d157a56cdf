"""A pass over a finite data source, the anchor of STIMULUS and STIMULUS-M."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from stimulus_moo.data.partition import ALL, Partition
from stimulus_moo.data.sources import Source


class FullPass:
    """This process's part of a finite source in runs of ``batch_size`` samples: the re-iterable anchor ``fit`` uses."""

    def __init__(self, source: Source, batch_size: int, partition: Partition = ALL) -> None:
        self.source = source
        self.batch_size = batch_size
        self.partition = partition

    def __iter__(self) -> Iterator[Any]:
        part = self.partition.part(len(self.source))
        return self.source.spans(self.batch_size, part.start, part.stop)
