"""The twins against known answers, so that they can be trusted as the measure of the library."""

import numpy as np
import pytest

from . import twins
from .problems import Counterexample, NonconvexSum, QuadraticSum

PROBLEMS = [
    NonconvexSum(),
    NonconvexSum(seed=3, n=17, dimension=8),
    Counterexample(),
    QuadraticSum(seed=1, n=12, dimension=4, objectives=4),
]


def draw_batches(seed, n, steps, size):
    rng = np.random.default_rng(seed)
    return [rng.choice(n, size=size, replace=False) for _ in range(steps)]


def draw_without_replacement(seed, n):
    rng = np.random.default_rng(seed)
    return lambda size: rng.choice(n, size=size, replace=False)


def assert_same_run(run, other, atol):
    for name in ("x", "weights", "d", "u"):
        np.testing.assert_allclose(getattr(run, name), getattr(other, name), rtol=0, atol=atol)


# Problems


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: type(problem).__name__)
def test_gradients_match_finite_differences(problem):
    rng = np.random.default_rng(0)
    h = 1e-5
    for indices in (np.array([0]), np.array([2, 0, 2]), np.arange(problem.n)):
        x = rng.normal(size=problem.dimension)
        found = problem.gradients(x, indices)
        assert found.shape == (problem.objectives, problem.dimension)
        for k, direction in enumerate(np.eye(problem.dimension)):
            ahead, behind = (problem.losses(x + sign * h * direction, indices) for sign in (1, -1))
            # truncation is O(h^2) = 1e-10 and rounding O(1e-16 / h) = 1e-11, times the size of the losses
            np.testing.assert_allclose(found[:, k], (ahead - behind) / (2 * h), rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: type(problem).__name__)
def test_full_means_are_means_of_single_samples(problem):
    x = np.random.default_rng(1).normal(size=problem.dimension)
    losses = np.mean([problem.losses(x, [j]) for j in range(problem.n)], axis=0)
    gradients = np.mean([problem.gradients(x, [j]) for j in range(problem.n)], axis=0)
    np.testing.assert_allclose(problem.full_losses(x), losses, rtol=1e-13)
    np.testing.assert_allclose(problem.full_gradients(x), gradients, rtol=1e-12, atol=1e-14)


def test_nonconvex_sum_is_nonconvex_and_its_objectives_conflict():
    problem = NonconvexSum()
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(2, 200, problem.dimension)) * 3
    at_a, at_b, middles = (np.array([problem.full_losses(x) for x in xs]) for xs in (a, b, (a + b) / 2))
    assert (middles > (at_a + at_b) / 2 + 1e-3).any(axis=0).all()

    run = twins.mgd(problem, np.ones(problem.dimension), steps=300, lr=1.0)
    gramian = run.u[-1] @ run.u[-1].T
    assert np.sum(run.d[-1] ** 2) < 1e-20
    assert np.diag(gramian).min() > 0.05  # Pareto stationary, yet no single objective is at rest
    assert gramian.min() < -0.1


def test_quadratic_curvature_lies_between_mu_and_L():
    problem = QuadraticSum(seed=2, n=15, dimension=3, objectives=3)
    eigenvalues = np.linalg.eigvalsh(problem.hessians)
    assert eigenvalues.max() == pytest.approx(problem.L, rel=1e-13)
    assert eigenvalues.min() == pytest.approx(problem.mu, rel=1e-13)


# Subproblems


def test_min_norm_of_two_rows_is_the_clipped_closed_form():
    rng = np.random.default_rng(0)
    for _ in range(200):
        u, v = rng.normal(size=(2, 3)) + 0.5
        first = np.clip(np.dot(v, v - u) / np.dot(u - v, u - v), 0, 1)
        np.testing.assert_allclose(twins.min_norm(np.array([u, v])), [first, 1 - first], rtol=0, atol=1e-13)


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_min_norm_satisfies_the_kkt_conditions(count):
    rng = np.random.default_rng(count)
    for _ in range(50):
        u = rng.normal(size=(count, rng.integers(1, 7))) * 10.0 ** rng.integers(-3, 4, size=(count, 1))
        weights = twins.min_norm(u)
        v = weights @ u
        lengths = np.linalg.norm(u, axis=1)
        assert weights.min() >= 0
        assert weights.sum() == pytest.approx(1, abs=1e-15)
        # DESIGN.md's residual: no row may have a smaller inner product with v than v itself
        residual = (v @ v - u @ v) / ((weights @ lengths) * lengths)
        assert residual.max() <= 1e-13


@pytest.mark.parametrize(
    ("rows", "weights"),
    [
        ([[3.0, 4.0]], [1.0]),
        ([[1.0, 0.0], [0.0, 1.0]], [0.5, 0.5]),
        ([[1.0, 0.0], [0.0, 2.0]], [0.8, 0.2]),
        ([[1.0, 1.0], [2.0, 2.0], [3.0, 0.5]], [1.0, 0.0, 0.0]),
        ([[1.0, 2.0], [0.0, 0.0], [2.0, 1.0]], [0.0, 1.0, 0.0]),
        ([[2.0, 1.0], [2.0, 1.0], [2.0, -1.0]], [0.5, 0.0, 0.5]),  # duplicates: the first one is taken
        ([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]], [1 / 3, 1 / 3, 1 / 3]),
        ([[1e-8, 0.0], [0.0, 1e8]], [1.0, 1e-32]),
    ],
)
def test_min_norm_known_answers(rows, weights):
    np.testing.assert_allclose(twins.min_norm(np.array(rows)), weights, rtol=1e-15, atol=0)


def test_projection_known_answers_and_optimality():
    np.testing.assert_array_equal(twins.project_simplex([0.25, 0.75]), [0.25, 0.75])
    np.testing.assert_array_equal(twins.project_simplex([2.0, 0.5, -1.0]), [1.0, 0.0, 0.0])
    np.testing.assert_array_equal(twins.project_simplex([1.0, 0.5, -1.0]), [0.75, 0.25, 0.0])
    rng = np.random.default_rng(0)
    for _ in range(100):
        v = rng.normal(size=4)
        w = twins.project_simplex(v)
        assert w.min() >= 0
        assert w.sum() == pytest.approx(1, abs=1e-15)
        # (v - w) . (vertex - w) <= 0 for every vertex of the simplex
        assert ((v - w) - (v - w) @ w).max() <= 1e-14


# The counterexample with known limits


def test_mgd_and_stimulus_reach_the_pareto_point_of_the_counterexample():
    problem = Counterexample()
    batches = draw_batches(0, problem.n, 60, 1)
    full = twins.mgd(problem, problem.start, steps=60, lr=0.5)
    reduced = twins.stimulus(problem, problem.start, steps=60, lr=0.5, batches=batches, period=10)
    heavy = twins.stimulus_m(problem, problem.start, steps=120, lr=0.3, batches=2 * batches, period=10, momentum=0.5)
    for run in (full, reduced, heavy):
        assert run.x[-1, 0] == pytest.approx(problem.pareto, abs=1e-12)


# Batch 1, 3000 steps. The slopes a_sj have standard deviation 2.1 over the samples, so the mean over a run is
# known to 2.1 / sqrt(3000) = 0.04 at worst (all weight on one objective); SMGD's per-sample slopes (1, -0.1,
# -0.1) have 0.5, so 0.01.


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_smgd_settles_at_the_biased_point(seed):
    problem = Counterexample()
    batches = draw_batches(seed, problem.n, 3000, 1)
    run = twins.smgd(problem, problem.start, steps=3000, lr=lambda t: 1 / (t + 1), batches=batches)
    assert run.x[-1, 0] == pytest.approx(problem.biased, abs=0.03)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_cr_mogm_comes_near_the_pareto_point(seed):
    problem = Counterexample()
    run = twins.cr_mogm(
        problem,
        problem.start,
        steps=3000,
        lr=lambda t: 1 / (t + 1),
        batches=draw_batches(seed, problem.n, 3000, 1),
        alpha=lambda t: 1 - 1 / (t + 1),
    )
    assert run.x[-1, 0] == pytest.approx(problem.pareto, abs=0.12)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("method", [twins.moco, twins.moco_plus])
def test_moco_comes_near_the_pareto_point(method, seed):
    problem = Counterexample()
    run = method(
        problem,
        problem.start,
        steps=3000,
        lr=lambda t: 0.5 * (t + 1) ** -0.75,
        batches=draw_batches(seed, problem.n, 3000, 1),
        beta=lambda t: (t + 1) ** -0.5,
        gamma=0.01,
    )
    assert run.x[-1, 0] == pytest.approx(problem.pareto, abs=0.12)


# Counters


@pytest.mark.parametrize(
    ("n", "steps", "size", "samples", "gradients"),
    [
        (128, 1000, 8, 100 * 128 + 900 * 8, 27200),  # river flow table
        (1024, 100, 32, 13120, 10 * 1024 + 90 * 64),  # CelebA text
    ],
)
def test_stimulus_counts_of_the_paper(n, steps, size, samples, gradients):
    problem = QuadraticSum(seed=0, n=n, dimension=2, objectives=2)
    options = {"steps": steps, "lr": 0.1, "batches": draw_batches(0, n, steps, size), "period": 10}
    for run in (
        twins.stimulus(problem, np.zeros(2), **options),
        twins.stimulus_m(problem, np.zeros(2), **options, momentum=0.1),
    ):
        assert run.samples[-1] == samples
        assert run.gradients[-1] == gradients


@pytest.mark.slow
def test_counts_of_the_baselines():
    problem = QuadraticSum(seed=0, n=128, dimension=2, objectives=2)
    options = {"steps": 1000, "lr": 0.1, "batches": draw_batches(0, 128, 1000, 8)}
    tracking = {"beta": 0.5, "gamma": 0.1}
    expected = [
        (twins.mgd(problem, np.zeros(2), **options), 128000, 128000),  # river flow table
        (twins.smgd(problem, np.zeros(2), **options), 8000, 8000),
        (twins.cr_mogm(problem, np.zeros(2), **options, alpha=0.5), 8000, 8000),
        (twins.moco(problem, np.zeros(2), **options, **tracking), 8000, 8000),
        (twins.moco_plus(problem, np.zeros(2), **options, **tracking), 8000, 8 + 999 * 16),
    ]
    for run, samples, gradients in expected:
        assert run.samples[-1] == samples
        assert run.gradients[-1] == gradients


# Methods that must agree


def nonconvex_run(method, *, steps=40, size=8, **options):
    problem = NonconvexSum()
    batches = draw_batches(5, problem.n, steps, size)
    return method(problem, np.ones(problem.dimension), steps=steps, lr=0.3, batches=batches, **options)


def test_stimulus_with_period_one_is_mgd():
    run, full = nonconvex_run(twins.stimulus, period=1), nonconvex_run(twins.mgd)
    assert_same_run(run, full, atol=0)
    np.testing.assert_array_equal(run.gradients, full.gradients)


def test_stimulus_on_full_batches_is_mgd_to_rounding():
    run, full = nonconvex_run(twins.stimulus, size=60, period=10), nonconvex_run(twins.mgd)
    assert_same_run(run, full, atol=1e-13)


def test_stimulus_stays_close_to_the_full_gradient_where_smgd_does_not():
    problem = NonconvexSum()

    def error(run):
        return np.mean((run.u - [problem.full_gradients(x) for x in run.x[:-1]]) ** 2)

    assert error(nonconvex_run(twins.stimulus, period=8)) < 0.2 * error(nonconvex_run(twins.smgd))


def test_momentum_is_the_heavy_ball_recursion_under_a_schedule():
    problem = NonconvexSum()

    def schedule(t):
        return 0.3 / (t + 1)

    run = twins.stimulus_m(
        problem,
        np.ones(5),
        steps=20,
        lr=schedule,
        batches=draw_batches(5, 60, 20, 8),
        period=5,
        momentum=0.5,
    )
    np.testing.assert_allclose(run.x[1], run.x[0] - schedule(0) * run.d[0], rtol=0, atol=1e-15)
    for t in range(1, 20):
        following = run.x[t] - schedule(t) * run.d[t] + 0.5 * (run.x[t] - run.x[t - 1])
        np.testing.assert_allclose(run.x[t + 1], following, rtol=0, atol=1e-15)


def test_zero_momentum_is_stimulus():
    run = nonconvex_run(twins.stimulus_m, period=7, momentum=lambda t: 0.0)
    assert_same_run(run, nonconvex_run(twins.stimulus, period=7), atol=0)


def test_constant_smoothing_of_zero_is_smgd():
    assert_same_run(nonconvex_run(twins.cr_mogm, alpha=0.0), nonconvex_run(twins.smgd), atol=0)


def test_full_smoothing_keeps_the_first_weights():
    run = nonconvex_run(twins.cr_mogm, alpha=1.0)
    np.testing.assert_array_equal(run.weights, np.tile(run.weights[0], (40, 1)))


def test_tracking_with_beta_one_forgets_and_equals_storm_with_beta_one():
    weighting = {"gamma": 0.1, "rho": 0.01}
    run = nonconvex_run(twins.moco, beta=1.0, **weighting)
    # y - 1 * (y - g) rounds where g + 0 * (...) does not
    assert_same_run(run, nonconvex_run(twins.moco_plus, beta=1.0, **weighting), atol=1e-14)


def test_moco_first_step_by_hand():
    run = twins.moco(Counterexample(), [3.0], steps=1, lr=0.1, batches=[np.array([1])], beta=0.5, gamma=0.01, rho=0.2)
    # g = (7, 3.1), y = (3.5, 1.55), y.lambda = 2.525: lambda - 0.01 (y y.lambda + 0.2 lambda), then projected
    first, second = 0.5 - 0.01 * (3.5 * 2.525 + 0.1), 0.5 - 0.01 * (1.55 * 2.525 + 0.1)
    weights = np.array([first, second]) + (1 - first - second) / 2
    np.testing.assert_allclose(run.u[0], [[3.5], [1.55]], rtol=1e-15)
    np.testing.assert_allclose(run.weights[0], weights, rtol=1e-14)
    np.testing.assert_allclose(run.x[1], [3 - 0.1 * (weights @ [3.5, 1.55])], rtol=1e-14)


def test_rho_pulls_the_weights_together():
    weights = twins.descend_weights(np.array([0.8, 0.2]), np.zeros((2, 1)), gamma=0.5, rho=1.0)
    # (0.8, 0.2) halved is (0.4, 0.1); the projection gives each 0.25 back
    np.testing.assert_allclose(weights, [0.65, 0.35], rtol=1e-15)


def test_storm_with_beta_zero_on_full_batches_is_the_full_gradient():
    problem = NonconvexSum()
    run = nonconvex_run(twins.moco_plus, size=60, beta=0.0, gamma=0.1)
    full = [problem.full_gradients(x) for x in run.x[:-1]]
    np.testing.assert_allclose(run.u, full, rtol=0, atol=1e-13)


def test_storm_applies_its_correction():
    problem = NonconvexSum()
    batches = draw_batches(5, problem.n, 40, 8)
    run = nonconvex_run(twins.moco_plus, beta=0.3, gamma=0.1)
    for t in range(1, 40):
        now, before = (problem.gradients(x, batches[t]) for x in (run.x[t], run.x[t - 1]))
        # the same rule in its other form: u_t - g_t(x_t) = 0.7 (u_{t-1} - g_t(x_{t-1}))
        np.testing.assert_allclose(run.u[t] - now, 0.7 * (run.u[t - 1] - before), rtol=0, atol=1e-15)


# Adaptive anchors


def test_gamma_and_anchor_size_by_hand():
    directions = [np.array([9.0, 9.0]), np.array([1.0, 0.0]), np.array([0.0, 2.0])]
    assert twins.window_gamma(directions, 2, 1.0) == 2.5
    assert twins.window_gamma(directions, 2, 0.5) == 2.125
    constants = {"sigma2": 10.0, "c_gamma": 8.0, "c_epsilon": 1.0}
    assert twins.adaptive_size(1000, 2.5, epsilon=1e-3, **constants) == 32
    assert twins.adaptive_size(1000, 2.49, epsilon=1e-3, **constants) == 33
    assert twins.adaptive_size(1000, 2.5, epsilon=0.5, **constants) == 20
    assert twins.adaptive_size(30, 2.5, epsilon=1e-3, **constants) == 30
    assert twins.adaptive_size(1000, None, epsilon=0.5, **constants) == 20
    assert twins.adaptive_size(1000, 0.0, epsilon=1e-3, **constants) == 1000
    assert twins.adaptive_size(1000, 1e6, epsilon=1e-3, **constants) == 1


def test_adaptive_anchor_of_all_samples_is_the_full_anchor():
    adaptive = {"draw": np.arange, "sigma2": 1.0, "epsilon": 1e-9, "c_gamma": 1e9}
    run = nonconvex_run(twins.stimulus_plus, period=6, **adaptive)
    assert_same_run(run, nonconvex_run(twins.stimulus, period=6), atol=0)
    run = nonconvex_run(twins.stimulus_m_plus, period=6, momentum=0.4, **adaptive)
    assert_same_run(run, nonconvex_run(twins.stimulus_m, period=6, momentum=0.4), atol=0)


@pytest.mark.parametrize("momentum", [None, 0.6])
def test_anchor_sizes_follow_the_directions_of_the_last_period(momentum):
    sizes = []
    draw = draw_without_replacement(1, 60)

    def recording_draw(size):
        sizes.append(size)
        return draw(size)

    options = {"period": 4, "draw": recording_draw, "sigma2": 0.01, "epsilon": 2e-4, "steps": 24}
    if momentum is None:
        run = nonconvex_run(twins.stimulus_plus, **options)
    else:
        run = nonconvex_run(twins.stimulus_m_plus, momentum=momentum, **options)
    alpha = 1.0 if momentum is None else momentum
    factors = alpha ** (2.0 * np.array([3, 2, 1, 0]))
    gammas = [np.sum(factors * np.sum(run.d[t - 4 : t] ** 2, axis=1)) / 4 for t in range(4, 24, 4)]
    assert sizes == [50, *(int(min(np.ceil(0.08 / gamma), 50)) for gamma in gammas)]
    assert len(set(sizes)) > 2  # both terms were active
    np.testing.assert_array_equal(np.diff(run.samples, prepend=0)[::4], sizes)
