import json

import pytest
import torch

from stimulus_moo import pareto_stationarity
from stimulus_moo.lab.studies.scaling_counts import count, rank, scalarise
from stimulus_moo.lab.studies.scaling_law import STUDY, bars_met, exponent, mean_count, run, verdict
from stimulus_moo.lab.synthetic.logistic import nonconvex_logistic, smoothness

TINY = {
    **STUDY.settings,
    "sizes": (16, 64),
    "tolerance": 1e-3,
    "dimension": 4,
    "methods": ("mgd", "stimulus", "stimulus+", "vr-scalarisation"),
    "baselines": {"scalarisation": (4.0,), "scalarisation-adam": (0.1,)},
    "baseline_sizes": (64,),
}


def plain(key, compute):
    json.dumps(key, allow_nan=False)
    return compute()


def test_tiny_run_end_to_end():
    report = run(TINY, 2, plain)
    assert json.loads(json.dumps(report, allow_nan=False))["name"] == "scaling-law"
    evaluations, steps, tuned = report["tables"]
    assert [row[0] for row in evaluations["rows"][:4]] == ["MGD", "STIMULUS", "STIMULUS+", "VR scalarisation"]
    assert all(len(row) == len(evaluations["columns"]) for row in evaluations["rows"])
    assert len(steps["rows"]) == 6
    assert [row[1] for row in tuned["rows"]] == [64, 64]
    assert len(report["charts"]) == 2
    assert any("MGD needs this many times more" in finding for finding in report["findings"])
    assert any(finding.startswith("Scalarisation, Adam at n = 64") for finding in report["findings"])


def test_mgd_counts_n_per_step_and_stops_at_the_first_stationary_iterate():
    found = count(TINY, "mgd", 64, 0, "sample")
    assert found["gradients"] == 64 * found["steps"]
    problem = nonconvex_logistic(64, seed=0, dimension=4)
    lr = 1 / (2 * smoothness(problem.data[0], TINY["regulariser"]).sample)
    values = []
    for _ in range(found["steps"]):
        values.append(pareto_stationarity(problem.model, problem.losses, [problem.data]))
        gradients = [
            torch.autograd.grad(loss, problem.model.x)[0]
            for loss in (problem.losses(problem.model, problem.data)[s] for s in (0, 1))
        ]
        gap = gradients[0] - gradients[1]
        share = ((gradients[1] @ -gap) / (gap @ gap)).clamp(0, 1)  # of the first objective
        with torch.no_grad():
            problem.model.x -= lr * (share * gradients[0] + (1 - share) * gradients[1])
    assert values[-1] <= TINY["tolerance"] < values[-2]


def test_stimulus_counts_its_anchors_and_both_points_of_inner_steps():
    found = count(TINY, "stimulus", 64, 0, "sample")
    periods, rest = divmod(found["steps"] - 1, 8)  # q = |A| = 8
    assert rest == 0  # it ends at an anchor
    assert found["gradients"] == periods * (64 + 7 * 16) + 64


def test_a_run_out_of_steps_has_not_reached_the_tolerance():
    found = count({**TINY, "max_steps": 2}, "mgd", 16, 0, "sample")
    assert found == {"reached": False, "gradients": None, "steps": None}
    report = run({**TINY, "max_steps": 2, "methods": ("mgd", "stimulus")}, 1, plain)
    json.dumps(report, allow_nan=False)
    assert report["verdict"] == "does not hold"
    assert "did not reach the tolerance" in report["findings"][0]


def test_a_scalarisation_out_of_budget_reports_the_stationarity_left():
    found = scalarise({**TINY, "tolerance": 1e-12}, "scalarisation", 64, 0, 1.0, "cosine", 400)
    assert not found["reached"]
    assert found["stationarity"] > 1e-12
    assert found["gradients"] == 400 + 64
    assert found["passes"] == 400 + 2 * 64  # the check at the end takes both gradients


def test_runs_that_reached_the_tolerance_rank_first():
    reached = {"reached": True, "gradients": 900, "stationarity": 0.9}
    short = {"reached": False, "gradients": 100, "stationarity": 0.2}
    diverged = {"reached": False, "gradients": 100, "stationarity": None}
    assert sorted([diverged, short, reached], key=rank) == [reached, short, diverged]


def counts(slow, fast, sizes=(1024, 65536)):
    made = {}
    for step in ("sample", "mean"):
        for method, law in (("mgd", slow), ("stimulus", fast)):
            for n in sizes:
                made[step, method, n] = [{"reached": True, "gradients": law(n), "steps": 1}]
    return made


@pytest.mark.parametrize(
    ("slow", "fast", "met"),
    [
        (lambda n: 1000.0 * n, lambda n: 3000.0 * n**0.5, True),
        (lambda n: 1000.0 * n**0.8, lambda n: 3000.0 * n**0.5, False),  # MGD too flat, and the factor too small
        (lambda n: 1000.0 * n, lambda n: 100.0 * n**0.7, False),  # STIMULUS too steep
        (lambda n: 1000.0 * n, lambda n: 8000.0 * n**0.5, False),  # a factor of 32 at n = 65536
    ],
)
def test_the_bars(slow, fast, met):
    settings = {**STUDY.settings, "sizes": (1024, 65536)}
    made = counts(slow, fast)
    exponents = {
        (step, method): exponent((1024, 65536), [mean_count(made[step, method, n]) for n in (1024, 65536)])
        for step in ("sample", "mean")
        for method in ("mgd", "stimulus")
    }
    assert bars_met(settings, "sample", made, exponents) is met


def test_the_verdict():
    assert verdict([True, False]) == "holds"
    assert verdict([False, True]) == "holds with another step size"
    assert verdict([False, False]) == "does not hold"


def test_a_missing_count_has_no_exponent():
    assert exponent([1, 2], [1.0, None]) is None
