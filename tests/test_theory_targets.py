"""What docs/theory.md says about Ray and Bounded, in numbers: what every step decreases, and where it ends."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from stimulus_moo import Bounded, Ray

Array = np.ndarray[Any, np.dtype[np.float64]]

RATE = 0.05  # of Bounded
CENTRES = np.array([[1.0, 0.0, 0.3], [-1.0, 0.5, 0.0], [0.0, -1.0, -0.5]])


def bells(x: Array) -> tuple[Array, Array]:
    """Return 1 - exp(-|x - c|^2 / 2) and its gradients: smoothness 1, and a front that is not convex."""
    offset = x - CENTRES
    height = np.exp(-0.5 * (offset**2).sum(1))
    return 1.0 - height, offset * height[:, None]


def descend(rule: Callable[[Tensor, Tensor], Tensor], eta: float, steps: int) -> list[tuple[Array, ...]]:
    x, path = np.array([0.4, 0.6, 0.8]), []
    for _ in range(steps):
        values, rows = bells(x)
        weights = rule(torch.from_numpy(rows @ rows.T), torch.from_numpy(values)).numpy()
        path.append((values, rows, weights))
        x = x - eta * weights @ rows
    return path


@pytest.mark.parametrize("preference", [(1.0, 1.0, 1.0), (1.0, 1.1, 0.8), (1.0, 10.0, 1.0)])
def test_every_step_towards_a_ray_decreases_the_augmented_chebyshev_function(preference: tuple[float, ...]) -> None:
    r, least = np.array(preference), 1e-3
    smoothness = float(r.max())
    eta = 0.5 / smoothness
    path = descend(Ray(preference), eta, 400)

    def largest(values: Array) -> float:
        return float((1.0 - 3 * least) * (r * values).max() + least * (r * values).sum())

    for (values, rows, weights), (after, _, _) in pairwise(path):
        scaled, nu, w = r * values, weights / r, weights @ rows
        kappa = float((r**2 * (rows**2).sum(1)).max() / scaled.max())
        assert nu.min() >= least * (1 - 1e-9)
        assert kappa <= 2.0 * smoothness
        now = largest(values)
        gap = kappa * (now - nu @ scaled) + 0.5 * w @ w
        assert gap >= -1e-12
        assert largest(after) <= now - eta * gap + 1e-10  # the ridge of the solver
    values, rows, weights = path[-1]
    assert np.linalg.norm(weights @ rows) < 1e-4 * np.linalg.norm(rows)
    inside = weights / r > 1.1 * least
    assert np.ptp((r * values)[inside]) < 1e-3
    if preference[1] < 2.0:
        assert inside.all()  # on the ray


@pytest.mark.parametrize("bounds", [{1: 0.45}, {1: 0.45, 2: 0.6}, {1: 0.99}])
def test_every_step_towards_bounds_decreases_the_penalty_function_and_ends_at_a_kkt_point(
    bounds: dict[int, float],
) -> None:
    bounded, free = sorted(bounds), [s for s in range(3) if s not in bounds]
    path = descend(Bounded(bounds), RATE, 500)
    found = []
    for values, rows, weights in path:
        scale = weights[free].sum()  # lambda sums to one before the weights are scaled
        over = values[bounded] - [bounds[s] for s in bounded]
        size = np.maximum(np.abs(over), 0.05 * np.maximum(values[bounded], [bounds[s] for s in bounded]))
        kappa = (rows[bounded] ** 2).sum(1) / size
        assert (rows[bounded] @ (weights @ rows / scale) >= kappa * over - 1e-9).all()
        found.append((values[free].mean(), over, kappa, weights[bounded] / scale, weights @ rows / scale, RATE * scale))
    rho = max(float(mu.max()) for *_, mu, _, _ in found) + 0.1
    assert RATE * (1.0 + rho * len(bounded)) <= 1.0  # L = 1
    for (mean, over, kappa, mu, w, eta), (mean_after, over_after, *_) in pairwise(found):
        assert RATE * kappa.max() <= 1.0
        now, after = (m + rho * np.maximum(o, 0.0).sum() for m, o in ((mean, over), (mean_after, over_after)))
        bracket = kappa * (mu * np.maximum(-over, 0.0) + (rho - mu) * np.maximum(over, 0.0))
        assert after <= now - eta * (0.5 * w @ w + bracket.sum()) + 1e-10
    mean, over, kappa, mu, w, _ = found[-1]
    assert np.linalg.norm(w) < 1e-3
    assert over.max() < 1e-3
    assert float(np.abs(mu * over).max()) < 1e-3
    assert (mu.max() > 0.01) == (bounds[1] < 0.9)
