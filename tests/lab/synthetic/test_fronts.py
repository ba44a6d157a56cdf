import math

import pytest
import torch

from stimulus_moo import measure
from stimulus_moo.lab.synthetic.fronts import FRONTS, in_hull


@pytest.mark.parametrize("front", FRONTS.values(), ids=FRONTS)
def test_the_mean_over_the_samples_is_the_objective_without_noise(front):
    start = front.start(torch.Generator().manual_seed(5))
    problem = front.problem(30, noise=1.0, seed=2, start=start)
    found = measure(problem.model, problem.losses, [problem.data])
    assert found.losses == pytest.approx(front.objectives(start).tolist(), abs=1e-12)


@pytest.mark.parametrize("front", FRONTS.values(), ids=FRONTS)
def test_a_single_sample_is_not(front):
    start = front.start(torch.Generator().manual_seed(5))
    problem = front.problem(30, noise=1.0, seed=2, start=start)
    one = tuple(tensor[:1] for tensor in problem.data)
    found = measure(problem.model, problem.losses, [one])
    assert abs(found.losses[0] - front.objectives(start)[0].item()) > 1e-3


@pytest.mark.parametrize("front", FRONTS.values(), ids=FRONTS)
def test_the_pareto_set_is_stationary(front):
    for u in (0.05, 0.3, 0.5, 0.9):
        problem = front.problem(10, noise=0.5, seed=0, start=front.pareto_set(u))
        assert measure(problem.model, problem.losses, [problem.data]).stationarity < 1e-20


@pytest.mark.parametrize("front", FRONTS.values(), ids=FRONTS)
def test_no_random_point_dominates_the_front(front):
    generator = torch.Generator().manual_seed(0)
    values = torch.stack([front.objectives(front.start(generator)) for _ in range(200)])
    for point in front.front(50):
        assert not ((values <= point).all(1) & (values < point - 1e-9).any(1)).any()


def test_the_fronts_have_their_equations():
    f1, f2 = FRONTS["quarter-circle"].front(40).T
    torch.testing.assert_close(f1**2 + f2**2, torch.ones(40, dtype=torch.float64))
    f1, f2 = FRONTS["two-bowls"].front(40).T
    torch.testing.assert_close(f1.sqrt() + f2.sqrt(), torch.ones(40, dtype=torch.float64))
    f1, f2 = FRONTS["fonseca-fleming"].front(40).T
    distance = (-torch.log(1 - f1)).clamp(min=0).sqrt() + (-torch.log(1 - f2)).clamp(min=0).sqrt()
    torch.testing.assert_close(distance, torch.full((40,), 2.0, dtype=torch.float64))


@pytest.mark.parametrize("front", FRONTS.values(), ids=FRONTS)
def test_points_are_evenly_spaced_from_end_to_end(front):
    gaps = front.front(101).diff(dim=0).norm(dim=1)
    assert gaps.max() < 1.15 * gaps.min()
    assert front.front(11)[0].tolist() == front.objectives(front.pareto_set(0.0)).tolist()


def test_what_scalarisation_can_find():
    assert in_hull(FRONTS["two-bowls"].front(101)).all()
    ends = in_hull(FRONTS["quarter-circle"].front(101), tolerance=1e-6)
    assert ends.nonzero().flatten().tolist() == [0, 100]
    inside = in_hull(FRONTS["fonseca-fleming"].front(1001))
    assert inside[:3].all()  # the tiny convex end
    assert not inside[20:981].any()


def test_hull_of_fonseca_fleming_ends_where_the_tangents_meet():
    """By symmetry the hull's long edge has slope -1: its ends are where df2/df1 = -1 off the middle."""
    front = FRONTS["fonseca-fleming"]
    inside = in_hull(front.front(2001), tolerance=1e-9)
    first = front.front(2001)[inside.nonzero().flatten()]
    gap = first.diff(dim=0).norm(dim=1)
    left = first[gap.argmax()]
    u = 1.0 - math.sqrt(-math.log(1.0 - left[0].item()))
    slope = ((1 + u) * math.exp(-((1 + u) ** 2))) / ((1 - u) * math.exp(-((1 - u) ** 2)))
    assert slope == pytest.approx(1.0, abs=0.05)  # 2001 points resolve the tangent point to about 1e-3


def test_dtlz2_is_stationary_off_its_front():
    """At theta = pi/2 the first objective is 0 and has no gradient, whatever g is."""
    start = torch.tensor([math.pi / 2, 0.8, -0.5], dtype=torch.float64)
    for name, stationary in (("dtlz2", True), ("quarter-circle", False)):
        problem = FRONTS[name].problem(10, noise=0.0, seed=0, start=start)
        found = measure(problem.model, problem.losses, [problem.data])
        assert (found.stationarity < 1e-20) is stationary
        assert max(found.losses) > 1.5
