import json
import math

import pytest

from stimulus_moo import pareto_stationarity
from stimulus_moo.lab.studies.least_squares import Line
from stimulus_moo.lab.studies.rate_runs import (
    constant_step,
    distances,
    expected_pick,
    ridge_of,
    shrinking_step,
    theory_step,
)
from stimulus_moo.lab.studies.rates import STUDY, fast_enough, linear, others_slower, run, straight, verdict
from stimulus_moo.lab.synthetic.logistic import nonconvex_logistic

TINY = {
    **STUDY.settings,
    "horizons": (4, 8),
    "n": 16,
    "dimension": 3,
    "ridge_n": 25,
    "ridge_steps": 10,
    "ridge_dimension": 3,
    "baselines": {"scalarisation": (2.0, 1.0), "scalarisation-adam": (0.1,)},
    "ridge_baselines": {"scalarisation": (0.05, 0.005), "scalarisation-adam": (0.03,)},
}


def plain(key, compute):
    json.dumps(key, allow_nan=False)
    return compute()


def test_tiny_run_end_to_end():
    report = run(TINY, 1, plain)
    json.dumps(report, allow_nan=False)
    assert report["name"] == "rates"
    exponents, lines = report["tables"]
    assert [tuple(row[:2]) for row in exponents["rows"]] == [
        ("MGD", "constant"),
        ("STIMULUS", "constant"),
        ("SMGD", "constant"),
        ("MoCo", "constant"),
        ("CR-MOGM", "constant"),
        ("MGD", "1/sqrt(T)"),
        ("SMGD", "1/sqrt(T)"),
        ("MoCo", "1/sqrt(T)"),
        ("CR-MOGM", "1/sqrt(T)"),
        ("Scalarisation, SGD", "1/sqrt(T)"),
        ("Scalarisation, Adam", "1/sqrt(T)"),
    ]
    assert len(lines["rows"]) == 7
    assert [chart["y"]["log"] for chart in report["charts"]] == [True, True]


def test_averages_begin_at_the_start():
    problem = nonconvex_logistic(16, seed=0, dimension=3)
    start = pareto_stationarity(problem.model, problem.losses, [problem.data])
    settings = {**TINY, "horizons": (1, 8)}
    first, later = constant_step(settings, "mgd", 0)
    assert first == pytest.approx(start)
    assert later < first
    assert shrinking_step(settings, "smgd", 1, 0, None) == pytest.approx(start)


def test_steps_shrink_with_the_horizon():
    """With a vanishing step the model stays where it starts, and so does the average."""
    settings = {**TINY, "horizons": (1, 8)}
    still = shrinking_step(settings, "smgd", 8, 0, 1e-12)
    assert still == pytest.approx(shrinking_step(settings, "smgd", 1, 0, 1e-12))


def test_distance_falls_and_the_pick_is_one_of_the_iterates():
    found = distances(TINY, "mgd", 0, 0.1)
    ridge = ridge_of(TINY, 0)
    assert found["distance"][0] == pytest.approx(ridge.distance(ridge.problem.model().detach()))
    assert found["distance"][-1] < found["distance"][0]
    assert len(found["distance"]) == 11
    assert found["picked"] == pytest.approx(found["distance"][found["picked_at"]])
    assert found["rate"] == pytest.approx(0.75 * ridge.mu * 0.1)


def test_the_step_is_the_smallest_of_the_theorems_bounds():
    ridge = ridge_of(TINY, 0)
    assert theory_step(ridge) == ridge.mu / (64 * ridge.smoothness**2)  # L >= mu makes this the smallest here


def test_a_run_that_diverges_is_none():
    """A step of 3 is too long for the curvature of these data, but not yet for the random clock."""
    assert distances({**TINY, "ridge_steps": 2000, "ridge": 0.01}, "mgd", 0, 3.0) is None


def test_expected_pick_of_a_constant_is_the_constant():
    assert expected_pick([3.0] * 5, 7, 0.01) == pytest.approx(9.0)


def test_an_exact_exponential_is_a_straight_line():
    found = {"every": 5, "distance": [math.exp(-0.01 * 5 * i) for i in range(50)]}
    fitted = straight(found, 1e-8)
    assert (fitted.slope, fitted.r_squared) == pytest.approx((-0.02, 1.0))


def test_distances_below_the_floor_are_left_out():
    found = {"every": 1, "distance": [1.0, 0.1, 0.01, 1e-12, 1e-12]}
    assert straight(found, 1e-8).slope == pytest.approx(-2 * math.log(10))


def test_the_rules_both_ways():
    settings = STUDY.settings
    fast, slow = Line(-0.95, 0.0, 1.0), Line(-0.5, 0.0, 1.0)
    exponents = {(method, "constant"): fast for method in ("mgd", "stimulus")}
    exponents |= {(method, "1/sqrt(T)"): slow for method in ("smgd", "moco", "cr-mogm")}
    assert fast_enough(settings, exponents)
    assert not fast_enough(settings, {**exponents, ("stimulus", "constant"): slow})
    assert others_slower(settings, exponents)
    assert not others_slower(settings, {**exponents, ("moco", "1/sqrt(T)"): fast})
    assert not others_slower(settings, {**exponents, ("moco", "constant"): Line(-0.9, 0.0, 1.0)})
    assert others_slower(settings, {**exponents, ("moco", "constant"): Line(-0.8, 0.0, 1.0)})
    followed = {method: [{"rate": 0.01}] for method in ("mgd", "stimulus")}
    assert linear(settings, followed, {method: [Line(-0.02, 0.0, 0.99)] for method in followed})
    assert not linear(settings, followed, {method: [Line(-0.005, 0.0, 0.99)] for method in followed})
    assert not linear(settings, followed, {method: [Line(-0.02, 0.0, 0.9)] for method in followed})
    assert verdict([True, True]) == "holds"
    assert verdict([True, False]) == "does not hold"
