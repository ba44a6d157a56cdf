"""Time several sides in one process, in alternating blocks: medians, ratios and their spread."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

#: target seconds of a block, so that short calls use warm caches and the resolution of the clock does not matter
BLOCK_SECONDS = 0.05


@dataclass(frozen=True)
class Ratio:
    """The ratio of two sides: median and quartiles over pairs of neighbouring blocks."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        digits = 3 if self.median < 0.2 else 2
        return f"{self.median:.{digits}f} ({self.low:.{digits}f}-{self.high:.{digits}f})"


class Timings(Mapping[str, float]):
    """Median seconds per call of every side, with the seconds per call of each block.

    ``beside``: for a reference, the blocks of it that were timed just before those of each other side.
    """

    def __init__(self, blocks: dict[str, list[float]], beside: dict[str, dict[str, list[float]]] | None = None) -> None:
        self.blocks, self.beside = blocks, beside or {}

    def __getitem__(self, side: str) -> float:
        return statistics.median(self.blocks[side])

    def __iter__(self):
        return iter(self.blocks)

    def __len__(self) -> int:
        return len(self.blocks)

    def milliseconds(self, side: str) -> str:
        return milliseconds(self[side])

    def ratio(self, side: str, other: str) -> Ratio:
        """Return the time of a side divided by that of ``other``; one with fewer blocks is paired with the nearest."""
        own, others = self.blocks[side], self.beside.get(other, {}).get(side, self.blocks[other])
        most = max(len(own), len(others))
        ratios = [own[k * len(own) // most] / others[k * len(others) // most] for k in range(most)]
        low, _, high = statistics.quantiles(ratios, n=4, method="inclusive") if len(ratios) > 1 else ratios * 3
        return Ratio(statistics.median(ratios), low, high)


def milliseconds(seconds: float) -> str:
    """Return milliseconds with three significant digits.

    >>> milliseconds(0.00012345), milliseconds(0.012345), milliseconds(1.2345)
    ('0.123', '12.3', '1234')
    """
    value = seconds * 1e3
    return f"{value:.{0 if value >= 100 else 1 if value >= 10 else 2 if value >= 1 else 3}f}"


def alternate(
    sides: Mapping[str, Callable[[], object]],
    *,
    blocks: int = 15,
    calls: int | None = None,
    target: float = BLOCK_SECONDS,
) -> Timings:
    """Time the sides in alternation, so that drift affects all sides equally.

    Args:
        sides: a function without arguments for each side.
        blocks: number of blocks of each side.
        calls: calls in a block; None uses as many as fill ``target`` seconds, at least one.
        target: target seconds of a block.
    """
    counts = {name: _warm_up(function, target) if calls is None else calls for name, function in sides.items()}
    if calls is not None:
        for function in sides.values():
            for _ in range(3):
                function()
    return in_blocks(sides, counts, blocks)


def in_blocks(
    sides: Mapping[str, Callable[[], object]],
    calls: Mapping[str, int],
    blocks: int,
    every: Mapping[str, int] | None = None,
    reference: str | None = None,
) -> Timings:
    """Time the sides in alternation, with as many calls in a block as are given for each; nothing is warmed up.

    ``every``: sides that are timed in one of so many blocks only, since theirs are long. ``reference``: the side to
    which ratios matter most; a block of it is timed before each block of another side, so that the two are neighbours,
    and before a long block so many as the long one is seldom.
    """
    times: dict[str, list[float]] = {name: [] for name in sides}
    beside: dict[str, list[float]] = {name: [] for name in sides if reference is not None and name != reference}
    for k in range(blocks):
        for name, function in sides.items():
            seldom = (every or {}).get(name, 1)
            if k % seldom == 0:
                if reference is not None and name in beside:
                    beside[name].append(seconds_of(sides[reference], seldom * calls[reference]))
                times[name].append(seconds_of(function, calls[name]))
    return Timings(times, {} if reference is None else {reference: beside})


def _warm_up(function: Callable[[], object], target: float) -> int:
    """Warm up, and return how many calls fill a block."""
    first = seconds_of(function, 1)
    calls = 1 if first > 1.0 else 3  # a call that takes a second needs no further warm-up
    return max(1, round(target / seconds_of(function, calls)))


def seconds_of(function: Callable[[], object], calls: int = 1) -> float:
    """Return the mean seconds of a call."""
    start = time.perf_counter()
    for _ in range(calls):
        function()
    return (time.perf_counter() - start) / calls
