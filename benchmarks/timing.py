"""Timing side by side: both sides in one process, in alternating blocks, medians and their ratio."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable


def alternate(sides: dict[str, Callable[[], object]], *, blocks: int = 15, calls: int = 20) -> dict[str, float]:
    """Return the median seconds per call of every side; the sides take turns, so that drift hits all alike."""
    for function in sides.values():
        for _ in range(3):
            function()
    times: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(blocks):
        for name, function in sides.items():
            start = time.perf_counter()
            for _ in range(calls):
                function()
            times[name].append((time.perf_counter() - start) / calls)
    return {name: statistics.median(values) for name, values in times.items()}
