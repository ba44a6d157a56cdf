import pytest
import torch

from stimulus_moo import pareto_stationarity
from stimulus_moo.lab.synthetic.ridge import Ridge, multi_objective_ridge


@pytest.fixture(scope="module")
def ridge():
    return multi_objective_ridge(200, seed=1, objectives=3, dimension=5)


def test_gradients_are_those_of_the_quadratics(ridge):
    x = torch.linspace(-1.0, 2.0, 5, dtype=torch.float64, requires_grad=True)
    for s, loss in enumerate(ridge.problem.losses(lambda: x, ridge.problem.data)):
        (gradient,) = torch.autograd.grad(loss, x, retain_graph=True)
        torch.testing.assert_close(gradient, (ridge.hessians[s] @ x - ridge.slopes[s]).detach())


def test_points_of_the_pareto_set_are_stationary_and_at_distance_zero(ridge):
    weights = torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64)
    point = ridge.pareto_point(weights)
    with torch.no_grad():
        ridge.problem.model.x.copy_(point)
    assert pareto_stationarity(ridge.problem.model, ridge.problem.losses, [ridge.problem.data]) < 1e-20
    assert ridge.distance(point) < 1e-8  # the resolution the docstring states


@pytest.mark.parametrize("scale", [0.01, 0.3, 3.0])
def test_distance_agrees_with_a_grid_over_the_simplex(ridge, scale):
    x = torch.full((5,), scale, dtype=torch.float64)
    grid = [(i / 60, j / 60) for i in range(61) for j in range(61 - i)]
    weights = [torch.tensor([a, b, max(0.0, 1 - a - b)], dtype=torch.float64) for a, b in grid]
    nearest = min((ridge.pareto_point(w) - x).norm().item() for w in weights)
    found = ridge.distance(x)
    assert nearest - 0.02 < found <= nearest + 1e-12  # the grid is 1/60 apart, so never nearer than the minimum


def test_distance_to_a_segment_is_that_of_plain_geometry():
    hessians = torch.eye(2, dtype=torch.float64).repeat(2, 1, 1)
    slopes = torch.tensor([[0.0, 0.0], [1.0, 0.0]], dtype=torch.float64)  # minimisers (0, 0) and (1, 0)
    line = Ridge(multi_objective_ridge(10, seed=0).problem, hessians, slopes)
    for x, expected in (((0.3, 2.0), 2.0), ((2.0, 0.0), 1.0), ((-3.0, 4.0), 5.0), ((0.5, 0.0), 0.0)):
        assert line.distance(torch.tensor(x, dtype=torch.float64)) == pytest.approx(expected, abs=1e-9)


def test_mu_and_smoothness_are_the_extreme_eigenvalues():
    hessians = torch.stack([torch.diag(torch.tensor(d, dtype=torch.float64)) for d in ([1.0, 4.0], [0.5, 2.0])])
    ridge = Ridge(multi_objective_ridge(10, seed=0).problem, hessians, torch.zeros(2, 2, dtype=torch.float64))
    assert (ridge.mu, ridge.smoothness) == pytest.approx((0.5, 4.0))
