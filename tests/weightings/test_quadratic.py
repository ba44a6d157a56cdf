"""The quadratic program behind the loss-aware rules."""

from __future__ import annotations

import numpy as np
import pytest

from stimulus_moo.weightings.quadratic import minimise_quadratic
from stimulus_moo.weightings.solver import solve


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("rank", [1, 2, 8])
def test_solutions_satisfy_the_optimality_conditions(size: int, rank: int) -> None:
    draw = np.random.default_rng(size * 10 + rank)
    for _ in range(20):
        rows = draw.standard_normal((size, rank))
        gramian, gains = rows @ rows.T, draw.standard_normal(size)
        x = minimise_quadratic(gramian, gains, np.ones(size))
        slopes = gramian @ x - gains
        assert x.min() >= 0.0
        assert abs(x.sum() - 1.0) < 1e-9
        # the slope of every positive entry is the smallest
        assert np.all(slopes[x > 1e-7] <= slopes.min() + 1e-6 * (1.0 + np.abs(slopes).max()))


def test_without_gains_it_is_the_min_norm_problem() -> None:
    rows = np.random.default_rng(0).standard_normal((4, 6))
    gramian = rows @ rows.T
    assert np.allclose(minimise_quadratic(gramian, np.zeros(4), np.ones(4)), solve(gramian), atol=1e-9)


def test_entries_outside_the_sum_are_only_non_negative() -> None:
    # min (x0 u0 + x1 u1)^2 / 2 - x1 with x0 = 1, u0 = u1 = 1: x1 = 0; with the opposite u1 = -1: x1 = 2
    ones = np.array([[1.0, 1.0], [1.0, 1.0]])
    shared = np.array([1.0, 0.0])
    assert np.allclose(minimise_quadratic(ones, np.array([0.0, 1.0]), shared), [1.0, 0.0], atol=1e-8)
    opposite = np.array([[1.0, -1.0], [-1.0, 1.0]])
    assert np.allclose(minimise_quadratic(opposite, np.array([0.0, 1.0]), shared), [1.0, 2.0], atol=1e-8)


def test_zero_rows_are_no_problem() -> None:
    found = minimise_quadratic(np.zeros((3, 3)), np.array([0.0, 1.0, 0.5]), np.ones(3))
    assert np.allclose(found, [0.0, 1.0, 0.0], atol=1e-12)
