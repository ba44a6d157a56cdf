"""Two-objective problems with a known Pareto front, as finite sums with zero-mean noise."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stimulus_moo.lab.problem import Problem
from stimulus_moo.lab.synthetic.point import Point, centred, normal, uniform

_DENSE = 1000  # points for measuring the length of a front
_SAMPLED = 4001  # points for measuring the distance from it


@dataclass(frozen=True)
class FrontProblem:
    """Two objectives, their Pareto set and the distribution of starts.

    Attributes:
        name, title: names in reports.
        objectives: function from x to (f_1, f_2), without noise.
        pareto_set: function from [0, 1] to Pareto-optimal x, onto the whole set.
        start: function from a generator to a random start.
    """

    name: str
    title: str
    objectives: Callable[[Tensor], Tensor]
    pareto_set: Callable[[float], Tensor]
    start: Callable[[torch.Generator], Tensor]

    def front(self, points: int) -> Tensor:
        """Return points x 2 values on the front, evenly spaced along its length."""
        shares = np.linspace(0.0, 1.0, _DENSE)
        dense = torch.stack([self.objectives(self.pareto_set(float(u))) for u in shares]).numpy()
        length = np.concatenate([[0.0], np.linalg.norm(np.diff(dense, axis=0), axis=1).cumsum()])
        evenly = np.interp(np.linspace(0.0, length[-1], points), length, shares)
        return torch.stack([self.objectives(self.pareto_set(float(u))) for u in evenly])

    def distances(self, values: Tensor) -> Tensor:
        """Return the distances of points x S values from the front, which is sampled densely."""
        return torch.cdist(values, self.front(_SAMPLED)).min(1).values

    def problem(self, n: int, *, noise: float, seed: int, start: Tensor) -> Problem:
        r"""Return the finite sum f_sj(x) = f_s(x) + a_sj . x + b_sj ||x||^2 / 2 with sum_j a_sj = sum_j b_sj = 0.

        The b terms make the gradient noise depend on x; without them it would cancel in the difference of two points
        and a recursive estimator would be exact.
        """
        generator = torch.Generator().manual_seed(seed)
        objectives, count = self.objectives, len(self.objectives(start))
        slopes = noise * centred(normal(generator, n, count, len(start)))
        bends = noise * centred(normal(generator, n, count))

        def losses(model: Any, batch: tuple[Tensor, Tensor]) -> Tensor:
            a, b = batch
            x: Tensor = model()
            return objectives(x) + a.mean(0) @ x + 0.5 * b.mean(0) * x.square().sum()

        tasks = tuple(f"f{s + 1}" for s in range(count))
        return Problem(Point(start), losses, (slopes, bends), tasks, source=self.title, synthetic=True)


def _uniform(generator: torch.Generator, low: list[float], high: list[float]) -> Tensor:
    below, above = torch.tensor(low, dtype=torch.float64), torch.tensor(high, dtype=torch.float64)
    return below + (above - below) * uniform(generator, len(low))


def fonseca_fleming(dimension: int = 2) -> FrontProblem:
    """f_1 = 1 - exp(-||x - c||^2), f_2 = 1 - exp(-||x + c||^2), c = 1/sqrt(d): concave except near its two ends.

    The Pareto set is the segment from c to -c (Fonseca and Fleming, 1995).
    """
    centre = torch.full((dimension,), 1.0 / math.sqrt(dimension), dtype=torch.float64)

    def objectives(x: Tensor) -> Tensor:
        return 1.0 - torch.exp(-torch.stack([(x - centre).square().sum(), (x + centre).square().sum()]))

    return FrontProblem(
        "fonseca-fleming",
        "Fonseca-Fleming",
        objectives,
        lambda u: (1.0 - 2.0 * u) * centre,
        lambda generator: _uniform(generator, [-1.5] * dimension, [1.5] * dimension),
    )


def quarter_circle(dimension: int = 3) -> FrontProblem:
    """f_1 = cos(theta) + g, f_2 = sin(theta) + g: the front is a quarter circle, concave everywhere.

    theta = (pi / 4)(1 + sin x_1) and g = x_2^2 + ... + x_d^2.
    """
    return FrontProblem(
        "quarter-circle",
        "Quarter circle",
        lambda x: _arc(x) + x[1:].square().sum(),
        partial(_on_arc, dimension),
        partial(_around_arc, dimension),
    )


def dtlz2(dimension: int = 3) -> FrontProblem:
    """f_1 = (1 + g) cos(theta), f_2 = (1 + g) sin(theta): DTLZ2 (Deb et al., 2002) with sin x_1 in place of its box.

    The front is that of ``quarter_circle``. At the ends of theta one objective vanishes together with its gradient,
    for any g: such points are Pareto-stationary but far from the front.
    """
    return FrontProblem(
        "dtlz2",
        "DTLZ2",
        lambda x: _arc(x) * (1.0 + x[1:].square().sum()),
        partial(_on_arc, dimension),
        partial(_around_arc, dimension),
    )


def _arc(x: Tensor) -> Tensor:
    theta = (math.pi / 4.0) * (1.0 + torch.sin(x[0]))
    return torch.stack([torch.cos(theta), torch.sin(theta)])


def _on_arc(dimension: int, u: float) -> Tensor:
    x = torch.zeros(dimension, dtype=torch.float64)
    x[0] = math.asin(2.0 * u - 1.0)
    return x


def _around_arc(dimension: int, generator: torch.Generator) -> Tensor:
    high = [math.pi / 2.0] + [1.0] * (dimension - 1)
    return _uniform(generator, [-value for value in high], high)


def two_bowls(dimension: int = 2) -> FrontProblem:
    """f_1 = ||x - c||^2 / 4, f_2 = ||x + c||^2 / 4, c = 1/sqrt(d): a convex front, sqrt(f_1) + sqrt(f_2) = 1."""
    centre = torch.full((dimension,), 1.0 / math.sqrt(dimension), dtype=torch.float64)

    def objectives(x: Tensor) -> Tensor:
        return torch.stack([(x - centre).square().sum(), (x + centre).square().sum()]) / 4.0

    return FrontProblem(
        "two-bowls",
        "Two bowls (convex front)",
        objectives,
        lambda u: (1.0 - 2.0 * u) * centre,
        lambda generator: _uniform(generator, [-1.5] * dimension, [1.5] * dimension),
    )


#: The problems by name.
FRONTS: dict[str, FrontProblem] = {
    front.name: front for front in (fonseca_fleming(), quarter_circle(), dtlz2(), two_bowls())
}


def in_hull(front: Tensor, tolerance: float = 1e-3) -> Tensor:
    """Return for every point of a front, in order, whether linear scalarisation can reach it.

    Those are the points within ``tolerance`` of the lower-left convex hull of the front.

    >>> in_hull(torch.tensor([[0.0, 1.0], [0.7, 0.7], [1.0, 0.0]], dtype=torch.float64)).tolist()
    [True, False, True]
    """
    points = front[front[:, 0].argsort()].tolist()
    hull: list[list[float]] = []
    for x, y in points:
        while len(hull) >= 2:
            (x1, y1), (x2, y2) = hull[-2], hull[-1]
            if (x2 - x1) * (y - y1) - (y2 - y1) * (x - x1) > 0.0:
                break
            hull.pop()
        hull.append([x, y])
    corners = torch.tensor(hull, dtype=front.dtype)
    return torch.tensor([_to_polyline(point, corners) <= tolerance for point in front])


def _to_polyline(point: Tensor, corners: Tensor) -> float:
    """Return the distance from a point to the polyline through at least two corners."""
    begin, along = corners[:-1], corners.diff(dim=0)
    share = (((point - begin) * along).sum(1) / along.square().sum(1)).clamp(0.0, 1.0)
    return float((begin + share.unsqueeze(1) * along - point).norm(dim=1).min())
