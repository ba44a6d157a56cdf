"""Anchors: the batches over which an estimator takes its accurate gradient."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sized
from typing import Any

from stimulus_moo.anchors.variance import Place, Spread
from stimulus_moo.data.batches import require_batches
from stimulus_moo.data.partition import ALL, Partition
from stimulus_moo.data.sources import Source
from stimulus_moo.errors import InvalidBatch
from stimulus_moo.state import Stateful

_MOST_BATCHES = 1 << 16  # of an anchor without a length
Tally = Callable[[Spread], Spread]  #: from the spread of this process to the spread of all processes


class Anchor(Stateful, ABC):
    """What an anchor step evaluates, and what it learns from the steps."""

    adapts = False  #: ``record`` is called
    estimates_variance = False  #: pairs of pieces are compared
    divided = False  #: each process has its own part, and ``batches`` yields all of it
    place: Place | None = None  #: position of the current piece, None if it has no partner
    spread = Spread()  #: what this process has seen of the current anchor

    @property
    def repeats(self) -> bool:
        """Whether a second pass from the same state gives the same samples, before anything was evaluated."""
        return True

    @abstractmethod
    def batches(self, partition: Partition = ALL, tally: Tally | None = None) -> Iterator[Any]:
        """Yield this process's batches of one anchor step; ``tally`` serves anchors that evaluate a pilot first."""

    def learn(self, spread: Spread) -> None:
        """Receive what all processes have seen."""

    def observe(self, variance: float) -> None:
        """Receive the variance of one sample's gradient, measured on a batch between two anchors."""

    def record(self, sq_norm: float, *, anchored: bool) -> None:
        """Receive ||d_t||^2 of a finished step, and whether it was an anchor."""


class FullAnchor(Anchor):
    """Every batch of an iterable that can be iterated again, such as a DataLoader over the whole data set.

    With several processes, each passes an iterable over its own part of the data. An iterable without a length may
    yield 65,536 batches; with more it is considered endless and ``batches`` raises InvalidBatch.
    """

    divided = True

    def __init__(self, iterable: Iterable[Any]) -> None:
        self.iterable = iterable

    def batches(self, partition: Partition = ALL, tally: Tally | None = None) -> Iterator[Any]:
        """Yield all batches."""
        most = math.inf if isinstance(self.iterable, Sized) else _MOST_BATCHES
        for count, batch in enumerate(self.iterable):
            if count == most:
                raise InvalidBatch(
                    f"the anchor has given {count} batches and does not say how many it has: it may be endless; pass "
                    "AdaptiveBatch(stream, ...) for a stream, or give a finite anchor a __len__"
                )
            yield batch


class FullPass:
    """This process's part of a finite source in batches of ``batch_size`` samples: the iterable anchor of ``fit``."""

    def __init__(self, source: Source, batch_size: int, partition: Partition = ALL) -> None:
        self.source, self.batch_size, self.partition = source, batch_size, partition

    def __iter__(self) -> Iterator[Any]:
        part = self.partition.part(len(self.source))
        return self.source.spans(self.batch_size, part.start, part.stop)


def as_anchor(anchor: Any) -> Anchor:
    """Return an Anchor, or raise InvalidOption for anything that cannot be iterated again."""
    if isinstance(anchor, Anchor):
        return anchor
    require_batches("anchor", anchor, again=True)
    return FullAnchor(anchor)
