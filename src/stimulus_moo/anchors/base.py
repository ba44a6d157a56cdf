"""Anchors: the batches over which an estimator takes its accurate gradient."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sized
from typing import Any

from stimulus_moo.anchors.variance import Place, Spread
from stimulus_moo.data.batches import require_batches
from stimulus_moo.data.partition import ALL, Partition
from stimulus_moo.errors import InvalidBatch
from stimulus_moo.state import Stateful

_MOST_BATCHES = 1 << 16  # of an anchor without a length

#: from what this process has seen of an anchor to what all have
Tally = Callable[[Spread], Spread]


class Anchor(Stateful, ABC):
    """What an anchor step evaluates, and what it learns from it."""

    #: whether the anchor learns from the steps (``record``)
    adapts = False
    #: whether pairs of pieces are to be compared
    estimates_variance = False
    #: where the piece just given belongs, or None where it has no partner
    place: Place | None = None
    #: what this process has seen of the anchor under way
    spread = Spread()

    @abstractmethod
    def batches(self, partition: Partition = ALL, tally: Tally | None = None) -> Iterator[Any]:
        """Yield this process's batches of one anchor step; ``tally`` is there for anchors that look at a part first."""

    def learn(self, spread: Spread) -> None:
        """Learn from what all processes have seen."""

    def observe(self, variance: float) -> None:
        """Learn from the variance of one sample's gradient as a batch between two anchors shows it."""

    def record(self, sq_norm: float, *, anchored: bool) -> None:
        """Learn from a finished step: ||d_t||^2, and whether it was an anchor."""


class FullAnchor(Anchor):
    """Every batch of an iterable that can be iterated again, such as a DataLoader over the whole data set.

    Where several processes make one step, each brings an iterable over its own part of the data.
    One that does not say how long it is may give 65,536 batches; beyond that it is taken for endless.
    """

    def __init__(self, iterable: Iterable[Any]) -> None:
        self.iterable = iterable

    def batches(self, partition: Partition = ALL, tally: Tally | None = None) -> Iterator[Any]:
        """Yield all batches.

        Raises:
            InvalidBatch: there seems to be no end of them.
        """
        most = math.inf if isinstance(self.iterable, Sized) else _MOST_BATCHES
        for count, batch in enumerate(self.iterable):
            if count == most:
                raise InvalidBatch(
                    f"the anchor has given {count} batches and does not say how many it has: it may be endless; pass "
                    "AdaptiveBatch(stream, ...) for a stream, or give a finite anchor a __len__"
                )
            yield batch


def as_anchor(anchor: Any) -> Anchor:
    """Return an Anchor, taking any iterable that can be iterated again.

    Raises:
        InvalidOption: it cannot be iterated, or only once.
    """
    if isinstance(anchor, Anchor):
        return anchor
    require_batches("anchor", anchor, again=True)
    return FullAnchor(anchor)
