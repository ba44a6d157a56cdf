"""The paper's strongly convex example: f_1 = x^2 and f_2 = exp(-x), with noise on the gradient of every sample."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from stimulus_moo import InvalidOption
from stimulus_moo.lab.problem import Problem
from stimulus_moo.lab.synthetic.point import Point, centred, uniform

_BELOW = torch.special.ndtr(torch.tensor(-1.0, dtype=torch.float64)).item()  # P(N(0, 1) < -1)

#: Noise distributions on (-1, 1), as functions of uniform numbers in (0, 1).
NOISES: dict[str, Callable[[Tensor], Tensor]] = {
    "truncated-normal": lambda u: torch.special.ndtri(_BELOW + (1.0 - 2.0 * _BELOW) * u),
    "uniform": lambda u: 2.0 * u - 1.0,
    "none": torch.zeros_like,
}


def objectives(x: float) -> tuple[float, float]:
    """Return (x^2, exp(-x)).

    >>> objectives(0.0)
    (0.0, 1.0)
    """
    point = torch.tensor(x, dtype=torch.float64)
    return point.square().item(), torch.exp(-point).item()


def distance(x: float) -> float:
    """Return the distance to the Pareto set, which is [0, infinity): left of 0 both objectives fall with x."""
    return max(0.0, -x)


def parabola(n: int, *, seed: int, start: float, noise: str = "truncated-normal") -> Problem:
    r"""Return the finite sum f_sj(x) = f_s(x) + xi_sj x, whose gradient is that of f_s plus the noise xi_sj.

    The noise is N(0, 1) truncated to (-1, 1), or uniform there, and then centred over the samples, so that the mean
    objectives are exactly x^2 and exp(-x).

    Raises:
        InvalidOption: there is no such noise.
    """
    if noise not in NOISES:
        raise InvalidOption(f"noise must be one of {', '.join(NOISES)}, found {noise!r}")
    generator = torch.Generator().manual_seed(seed)
    xi = centred(NOISES[noise](uniform(generator, n, 2)))

    def losses(model: Any, batch: Tensor) -> Tensor:
        x: Tensor = model()
        return torch.cat([x.square(), torch.exp(-x)]) + batch.mean(0) * x

    return Problem(Point([start]), losses, xi, ("x^2", "exp(-x)"), source=f"{noise} noise, n = {n}", synthetic=True)
