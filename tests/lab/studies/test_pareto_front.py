import json

import pytest

from stimulus_moo.lab.studies.pareto_front import STUDY, ends, run, score, verdict
from stimulus_moo.lab.synthetic.fronts import FRONTS

TINY = {**STUDY.settings, "starts": 3, "steps": 12, "n": 16, "front_points": 41}


def plain(key, compute):
    json.dumps(key, allow_nan=False)
    return compute()


def test_tiny_run_end_to_end():
    report = run({**TINY, "problems": ("fonseca-fleming", "two-bowls")}, 1, plain)
    json.dumps(report, allow_nan=False)
    assert report["name"] == "pareto-front"
    assert [len(chart["series"]) for chart in report["charts"]] == [6, 6]
    assert len(report["tables"][0]["rows"]) == 10
    assert len(report["findings"]) == 10


def test_scalarisation_with_extreme_weights_finds_the_minima():
    settings = {**TINY, "starts": 2, "steps": 150, "lr": 0.5, "noise": 0.0}
    first, second = ends(settings, "two-bowls", "vr-scalarisation", 0)
    assert first == pytest.approx([0.0, 1.0], abs=1e-3)  # weights (1, 0)
    assert second == pytest.approx([1.0, 0.0], abs=1e-3)


def test_stimulus_ends_on_a_concave_front():
    settings = {**TINY, "steps": 120, "lr": 0.2}
    for f1, f2 in ends(settings, "quarter-circle", "stimulus", 0):
        assert f1**2 + f2**2 == pytest.approx(1.0, abs=1e-2)


def test_the_whole_front_scores_one():
    front = FRONTS["quarter-circle"]
    found = score(TINY, front, front.front(41).tolist())
    assert found == {"on front": 1.0, "coverage": 1.0, "outside hull": 1.0, "hypervolume": 1.0}


def test_the_ends_cover_little():
    front = FRONTS["quarter-circle"]
    found = score(TINY, front, [[1.0, 0.0], [0.0, 1.0], [3.0, 3.0]])
    assert found["on front"] == pytest.approx(2 / 3)
    assert found["coverage"] < 0.12
    assert found["outside hull"] < found["coverage"]


def test_no_points_score_zero():
    found = score(TINY, FRONTS["two-bowls"], [])
    assert found == {"on front": 0.0, "coverage": 0.0, "outside hull": None, "hypervolume": 0.0}


@pytest.mark.parametrize(
    ("own", "others", "expected"),
    [(0.9, 0.1, "holds"), (0.7, 0.1, "does not hold"), (0.9, 0.3, "does not hold")],
)
def test_the_verdict(own, others, expected):
    scores = {
        ("quarter-circle", "stimulus"): {"outside hull": own},
        ("quarter-circle", "scalarisation"): {"outside hull": others},
        ("two-bowls", "scalarisation"): {"outside hull": None},
    }
    assert verdict(STUDY.settings, scores) == expected
