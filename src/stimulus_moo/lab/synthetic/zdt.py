"""Problems of Zitzler, Deb and Thiele (2000) and of Deb et al. (2002) with known fronts, without their box constraints.

Where the originals have a variable in a box, these clamp it and add ten times the square of what is outside to every
loss; absolute values are squares.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from stimulus_moo.lab.synthetic.fronts import FrontProblem, fonseca_fleming, two_bowls

#: The values of f_1 on the front of ZDT3.
_PIECES = (
    (0.0, 0.0830015349),
    (0.1822287280, 0.2577623634),
    (0.4093136748, 0.4538821041),
    (0.6183967944, 0.6525117038),
    (0.8233317983, 0.8518328654),
)


def zdt2(dimension: int = 5) -> FrontProblem:
    """f_1 = u, f_2 = g (1 - (u / g)^2): a concave front, u = x_1 in [0, 1], g = 1 + 9 (x_2^2 + ...) / (d - 1)."""
    return _zdt("zdt2", "ZDT2 (concave)", lambda u, g: g * (1.0 - (u / g) ** 2), lambda share: share, dimension)


def zdt3(dimension: int = 5) -> FrontProblem:
    """f_1 = u, f_2 = g (1 - sqrt(u / g) - (u / g) sin(10 pi u)): a front of five pieces, u and g as in ZDT2.

    f_2 has a local minimum for every piece. Starts have u near 0.85, its least value: a gradient method stays there.
    """

    def second(u: Tensor, g: Tensor) -> Tensor:
        found: Tensor = g * (1.0 - torch.sqrt(u / g + 1e-12) - u / g * torch.sin(10.0 * math.pi * u))
        return found

    front = _zdt("zdt3", "ZDT3 (disconnected)", second, _on_pieces, dimension)

    def start(generator: torch.Generator) -> Tensor:
        x = front.start(generator)
        x[0] = 0.85 + 0.04 * (x[0] - 0.5)
        return x

    return replace(front, start=start)


class Sphere(FrontProblem):
    """A front that is the part of the unit sphere with non-negative entries."""

    def distances(self, values: Tensor) -> Tensor:
        """Return | ||f|| - 1 |, exact where no entry is negative."""
        return torch.abs(torch.linalg.vector_norm(values, dim=1) - 1.0)


def dtlz2_three(dimension: int = 5) -> FrontProblem:
    """Three losses whose front is an eighth of the unit sphere, scaled by 1 + g, g = x_3^2 + ... (DTLZ2)."""

    def objectives(x: Tensor) -> Tensor:
        angles, outside = _boxed(x[:2], math.pi / 2.0)
        first, second = angles
        g = x[2:].square().sum()
        cosine = torch.cos(first)
        direction = torch.stack([cosine * torch.cos(second), cosine * torch.sin(second), torch.sin(first)])
        return direction * (1.0 + g) + outside

    def pareto(share: float) -> Tensor:
        x = torch.zeros(dimension, dtype=torch.float64)
        x[0], x[1] = math.asin(share), math.pi / 2.0 * ((7.0 * share) % 1.0)
        return x

    return Sphere("dtlz2-3", "DTLZ2, 3 losses", objectives, pareto, _start(dimension))


def _zdt(
    name: str,
    title: str,
    second: Callable[[Tensor, Tensor], Tensor],
    first_of: Callable[[float], float],
    dimension: int,
) -> FrontProblem:
    def objectives(x: Tensor) -> Tensor:
        (u,), outside = _boxed(x[:1], 1.0)
        g = 1.0 + 9.0 * x[1:].square().sum() / (dimension - 1)
        return torch.stack([u, second(u, g)]) + outside

    def pareto(share: float) -> Tensor:
        x = torch.zeros(dimension, dtype=torch.float64)
        x[0] = first_of(share)
        return x

    return FrontProblem(name, title, objectives, pareto, _start(dimension))


def _boxed(x: Tensor, high: float) -> tuple[Tensor, Tensor]:
    """Return x clamped to [0, high], and ten times the squared distance from there."""
    inside = x.clamp(0.0, high)
    return inside, 10.0 * (x - inside.detach()).square().sum()


def _start(dimension: int) -> Callable[[torch.Generator], Tensor]:
    return lambda generator: torch.rand(dimension, generator=generator, dtype=torch.float64) * 0.6 + 0.2


def _on_pieces(share: float) -> float:
    """Return f_1 for a share of the length of all pieces of ZDT3."""
    rest = share * sum(high - low for low, high in _PIECES)
    for low, high in _PIECES:
        if rest <= high - low:
            return low + rest
        rest -= high - low
    return _PIECES[-1][1]


#: Problems for tracing fronts, by name: convex, concave, disconnected, three losses.
TRACED: dict[str, FrontProblem] = {
    front.name: front for front in (two_bowls(), zdt2(), fonseca_fleming(), zdt3(), dtlz2_three())
}
