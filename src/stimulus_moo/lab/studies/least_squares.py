"""Least-squares lines, on linear and logarithmic scales."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Line:
    """The line y = intercept + slope x, and its coefficient of determination R^2."""

    slope: float
    intercept: float
    r_squared: float


def line(x: Sequence[float], y: Sequence[float]) -> Line:
    """Return the least-squares line.

    >>> fitted = line([0, 1, 2], [1, 3, 5])
    >>> round(fitted.slope, 12), round(fitted.intercept, 12), round(fitted.r_squared, 12)
    (2.0, 1.0, 1.0)
    """
    xs, ys = np.asarray(x, dtype=float), np.asarray(y, dtype=float)
    slope, intercept = np.polynomial.Polynomial.fit(xs, ys, 1).convert(domain=[-1, 1]).coef[::-1]
    residual = ((ys - intercept - slope * xs) ** 2).sum()
    spread = ((ys - ys.mean()) ** 2).sum()
    return Line(float(slope), float(intercept), float(1.0 - residual / spread) if spread > 0.0 else 1.0)


def power_law(x: Sequence[float], y: Sequence[float]) -> Line:
    """Return the line through (log x, log y): its slope is the exponent of y = e^intercept x^slope.

    >>> round(power_law([1, 4, 16], [3, 6, 12]).slope, 12)
    0.5
    """
    return line(np.log(x).tolist(), np.log(y).tolist())
