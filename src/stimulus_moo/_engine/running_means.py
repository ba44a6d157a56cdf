"""Running means of the objectives' losses, some of which may be missing."""

import math
from collections.abc import Sequence


def running_means(old: Sequence[float] | None, new: Sequence[float], memory: float) -> list[float]:
    """Return ``memory`` times the old means plus the rest of the new values.

    A loss without a count (``counts=``) is NaN and leaves its mean as it is. A mean is infinite before its first value,
    and takes over that value.

    >>> running_means(None, [1.0, math.nan], 0.9)
    [1.0, inf]
    >>> running_means([1.0, math.inf], [math.nan, 2.0], 0.9)
    [1.0, 2.0]
    >>> running_means([1.0], [3.0], 0.5)
    [2.0]
    """
    means = [math.inf] * len(new) if old is None else old
    return [_mean(mean, value, memory) for mean, value in zip(means, new, strict=True)]


def _mean(old: float, new: float, memory: float) -> float:
    if math.isnan(new):
        return old
    return memory * old + (1.0 - memory) * new if math.isfinite(old) else new
