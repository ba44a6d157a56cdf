import json

import pytest

from stimulus_moo.lab.studies.strongly_convex import (
    STUDY,
    all_converge,
    follow,
    momentum_faster,
    run,
    steps_to,
    verdict,
)

TINY = {
    **STUDY.settings,
    "steps": 30,
    "lr": 0.05,
    "alternatives": ({"gamma": 0.001},),
    "n": 9,
    "batch_size": 3,
    "period": 3,
}
TINY["baselines"] = {"scalarisation": (0.5, 0.05), "scalarisation-adam": (0.5,)}


def plain(key, compute):
    json.dumps(key, allow_nan=False)
    return compute()


def test_tiny_run_end_to_end():
    report = run(TINY, 1, plain)
    json.dumps(report, allow_nan=False)
    assert report["name"] == "strongly-convex"
    assert len(report["charts"]) == 4
    assert {len(series["x"]) for chart in report["charts"] for series in chart["series"]} == {31}
    rows = report["tables"][0]["rows"]
    assert [row[0] for row in rows].count("MoCo") == 2
    assert rows[-2][:2] == ["Scalarisation, SGD", 0.5]


def test_mgd_follows_the_smaller_slope():
    """Left of 0 both slopes are negative, and near it that of x^2 is the smaller: x_{t+1} = (1 - 2 lr) x_t."""
    path = follow({**TINY, "start": -0.3}, "mgd", 0)
    assert path == pytest.approx([-0.3 * 0.9**t for t in range(31)])


def test_stimulus_is_mgd_where_noise_does_not_depend_on_x():
    assert follow(TINY, "stimulus", 1) == pytest.approx(follow(TINY, "mgd", 1), abs=1e-14)


def test_a_run_that_diverges_is_none():
    assert follow({**TINY, "lr": 1e200}, "mgd", 0) is None


def test_steps_are_counted_to_the_first_near_iterate():
    settings = {"near": 0.5, "steps": 3}
    assert steps_to(settings, [[-2.0, -0.4, -0.6], [-2.0, -1.0, 7.0]]) == 1.5
    assert steps_to(settings, [[-2.0, -0.4], [-2.0, -1.0]]) is None
    assert steps_to(settings, [None]) is None


def paths(fast, slow):
    def path(steps):
        return [[-1.0] * steps + [0.0]]

    return {
        **{method: path(fast) for method in ("moco", "stimulus-m", "stimulus-m+")},
        **{method: path(slow) for method in ("mgd", "smgd", "stimulus", "stimulus+")},
    }


def test_the_rules_both_ways():
    settings = {"near": 0.1, "steps": 10}
    assert momentum_faster(settings, paths(3, 5))
    assert not momentum_faster(settings, paths(5, 5))
    assert not momentum_faster(settings, {**paths(3, 5), "smgd": [[-1.0, 0.0]]})
    assert all_converge(settings, paths(3, 5))
    assert not all_converge(settings, {**paths(3, 5), "moco": [[-1.0, -1.0]]})
    assert not all_converge(settings, {**paths(3, 5), "moco": [None]})


def test_the_verdict():
    assert verdict([True, False]) == "holds"
    assert verdict([False, True]) == "holds with another step size"
    assert verdict([False, False]) == "does not hold"
