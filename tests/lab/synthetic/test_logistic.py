import pytest
import torch

from stimulus_moo.lab.synthetic.logistic import nonconvex_logistic, smoothness


@pytest.fixture
def problem():
    return nonconvex_logistic(50, seed=3, dimension=4, regulariser=0.1)


def test_rows_have_norm_one_and_labels_are_signs(problem):
    a, y = problem.data
    torch.testing.assert_close(a.norm(dim=1), torch.ones(50, dtype=torch.float64))
    assert set(y.unique().tolist()) == {-1.0, 1.0}


def test_loss_is_the_formula(problem):
    a, y = problem.data
    x = torch.tensor([0.3, -1.2, 0.0, 2.0], dtype=torch.float64)
    with torch.no_grad():
        problem.model.x.copy_(x)
        found = problem.losses(problem.model, problem.data)
    for s in range(2):
        expected = torch.log(1 + torch.exp(-y[:, s] * (a @ x))).mean() + 0.1 * sum(v**2 / (1 + v**2) for v in x)
        torch.testing.assert_close(found[s], expected)


def test_the_two_objectives_conflict(problem):
    losses = problem.losses(problem.model, problem.data)
    first, second = (torch.autograd.grad(loss, problem.model.x, retain_graph=True)[0] for loss in losses)
    cosine = torch.nn.functional.cosine_similarity(first, second, dim=0)
    assert cosine < 0.9


def test_smoothness_bounds_the_hessians(problem):
    bound = smoothness(problem.data[0], 0.1)
    generator = torch.Generator().manual_seed(0)

    def curvature(x, batch):
        def loss(x):
            return problem.losses(lambda: x, batch)[0]

        return torch.linalg.eigvalsh(torch.autograd.functional.hessian(loss, x)).abs().max().item()

    for scale in (0.0, 0.1, 1.0):
        x = scale * torch.randn(4, generator=generator, dtype=torch.float64)
        assert curvature(x, problem.data) <= bound.mean
        assert (
            max(curvature(x, (problem.data[0][j : j + 1], problem.data[1][j : j + 1])) for j in range(5))
            <= bound.sample
        )
    assert bound.mean < bound.sample


def test_it_is_not_convex(problem):
    def loss(x):
        return problem.losses(lambda: x, problem.data)[0]

    far = torch.full((4,), 5.0, dtype=torch.float64)
    eigenvalues = torch.linalg.eigvalsh(torch.autograd.functional.hessian(loss, far))
    assert eigenvalues[0] < 0.0


def test_the_population_does_not_depend_on_n():
    small, large = nonconvex_logistic(1000, seed=0), nonconvex_logistic(4000, seed=0)
    spread = [(a.T @ a / len(a)).diagonal() for a in (small.data[0], large.data[0])]
    torch.testing.assert_close(spread[0], spread[1], rtol=0.2, atol=0.005)  # a few standard errors at n = 1000
