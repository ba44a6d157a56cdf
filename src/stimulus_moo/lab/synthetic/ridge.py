"""Multi-objective ridge regression: strongly convex, with a known Pareto set."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from stimulus_moo import min_norm_weights
from stimulus_moo.lab.problem import Problem
from stimulus_moo.lab.synthetic.point import Point, normal


@dataclass(frozen=True)
class Ridge:
    """A ridge problem and its quadratic form: f_s(x) = x^T H_s x / 2 - b_s . x + a constant.

    Attributes:
        problem: model, losses and data.
        hessians: H_s, S x d x d.
        slopes: b_s, S x d.
    """

    problem: Problem
    hessians: Tensor
    slopes: Tensor

    @property
    def mu(self) -> float:
        """Strong convexity: the smallest eigenvalue of any H_s."""
        return float(torch.linalg.eigvalsh(self.hessians).min())

    @property
    def smoothness(self) -> float:
        """L: the largest eigenvalue of any H_s."""
        return float(torch.linalg.eigvalsh(self.hessians).max())

    def pareto_point(self, weights: Tensor) -> Tensor:
        """Return x(lambda), the minimiser of sum_s lambda_s f_s; over the simplex these are the Pareto set."""
        point: Tensor = torch.linalg.solve(torch.einsum("s,sij->ij", weights, self.hessians), weights @ self.slopes)
        return point

    def distance(self, x: Tensor, *, iterations: int = 50) -> float:
        """Return the distance from x to the Pareto set, min over the simplex of ||x(lambda) - x||.

        Gauss-Newton from the min-norm weights of the gradients at x: x(lambda) is replaced by its tangent, on which the
        nearest point is a min-norm problem, and the step is halved until the distance falls. Distances below about
        1e-8 are not resolved.
        """
        gradients = self.hessians @ x - self.slopes
        weights = _nearest_to_zero(gradients)
        point = self.pareto_point(weights)
        best = float((point - x).norm())
        for _ in range(iterations):
            # dx/dlambda_s = -H(lambda)^-1 (H_s x(lambda) - b_s)
            mixed = torch.einsum("s,sij->ij", weights, self.hessians)
            tangents = -torch.linalg.solve(mixed, (self.hessians @ point - self.slopes).T).T
            corners = point - x + tangents  # the tangent plane at the simplex's corners; weights @ tangents = 0
            change = _nearest_to_zero(corners) - weights
            for halvings in range(30):
                trial = weights + change / 2**halvings
                reached = self.pareto_point(trial)
                if (reached - x).norm() < best:
                    break
            else:
                break
            improved = float((reached - x).norm())
            settled = best - improved <= 1e-12 * best
            weights, point, best = trial, reached, improved
            if settled:
                break
        return best


def _nearest_to_zero(rows: Tensor) -> Tensor:
    return torch.from_numpy(min_norm_weights((rows @ rows.T).numpy()))


def multi_objective_ridge(
    n: int,
    *,
    seed: int,
    objectives: int = 2,
    dimension: int = 10,
    ridge: float = 0.5,
    noise: float = 0.5,
    start: float = 3.0,
) -> Ridge:
    """Return S ridge regressions of one x, each with its own features, true coefficients and targets.

    .. code-block:: text

        f_sj(x) = (a_sj . x - y_sj)^2 / 2 + ridge ||x||^2 / 2,     a_sj ~ N(0, I),  y_sj = a_sj . w_s + noise

    The Hessians differ between objectives, so the Pareto set is curved; x_0 is ``start`` in every coordinate.
    """
    generator = torch.Generator().manual_seed(seed)
    coefficients = normal(generator, objectives, dimension)
    a = normal(generator, n, objectives, dimension)
    y = torch.einsum("nsd,sd->ns", a, coefficients) + noise * normal(generator, n, objectives)

    def losses(model: Any, batch: tuple[Tensor, Tensor]) -> Tensor:
        a, y = batch
        x: Tensor = model()
        return 0.5 * (a @ x - y).square().mean(0) + 0.5 * ridge * x.square().sum()

    problem = Problem(
        model=Point(torch.full((dimension,), start)),
        losses=losses,
        data=(a, y),
        tasks=tuple(f"regression {s + 1}" for s in range(objectives)),
        source=f"ridge regression, n = {n}, dimension {dimension}",
        synthetic=True,
    )
    hessians = torch.einsum("nsi,nsj->sij", a, a) / n + ridge * torch.eye(dimension, dtype=torch.float64)
    return Ridge(problem, hessians, torch.einsum("nsi,ns->si", a, y) / n)
