"""Claims: the rules decide by the numbers, in both directions."""

from __future__ import annotations

from pathlib import Path

from stimulus_moo.lab.report.claims import CLAIMS, alike, counts, lower, slowest
from stimulus_moo.lab.report.groups import Group, group_runs
from stimulus_moo.lab.runs.reading import RecordedRun


def group(losses: dict[str, float], gradients: dict[str, int] | None = None, start: float = 10.0) -> Group:
    runs = []
    for method, loss in losses.items():
        count = (gradients or {}).get(method, 100)
        record = {"step": 9, "samples": count, "gradients": count, "losses": [loss], "weights": [1.0], "sq_norm": 1.0}
        record.update(stationarity=0.1, full_losses=[loss])
        first = {**record, "step": 0, "losses": [start]}
        del first["full_losses"], first["stationarity"]
        summary = {**record, "method": method, "seconds": 1.0, "diverged": False}
        settings = {"experiment": "x", "method": method, "seed": 0, "lr": 0.1, "tasks": ["only"]}
        runs.append(RecordedRun("x", method, 0, settings, [first, record], summary, Path("x")))
    return group_runs(runs)[0]


def test_lower_compares_the_worst_of_one_side_with_the_best_of_the_other() -> None:
    rule = lower(("stimulus", "mgd"), ("smgd", "moco"))
    assert rule(group({"stimulus": 0.1, "mgd": 0.2, "smgd": 0.3, "moco": 0.4})).holds
    found = rule(group({"stimulus": 0.1, "mgd": 0.35, "smgd": 0.3, "moco": 0.4}))
    assert not found.holds
    assert "MGD 0.35" in found.figures
    assert rule(group({"stimulus": 0.1, "mgd": 0.1})).holds is None  # nothing to compare with


def test_much_lower_is_less_than_half() -> None:
    rule = CLAIMS["riverflow"][0].rule
    family = ("stimulus", "stimulus-m", "stimulus+", "stimulus-m+")
    assert rule(group({**dict.fromkeys(family, 0.19), "smgd": 0.4, "moco": 0.5})).holds is True
    found = rule(group({**dict.fromkeys(family, 0.39), "smgd": 0.4, "moco": 0.5}))
    assert found.holds is False
    assert found.figures.endswith("(much lower: below 0.5 times)")


def test_alike_is_a_ratio() -> None:
    assert alike("mgd", "stimulus", 0.05)(group({"mgd": 1.0, "stimulus": 1.04})).holds
    assert not alike("mgd", "stimulus", 0.05)(group({"mgd": 1.0, "stimulus": 1.06})).holds


def test_counts_must_be_exact_and_the_others_fewer() -> None:
    rule = counts("gradients", {"mgd": 1000}, {"stimulus+": 500})
    losses = {"mgd": 1.0, "stimulus+": 1.0}
    assert rule(group(losses, {"mgd": 1000, "stimulus+": 499})).holds
    assert not rule(group(losses, {"mgd": 1001, "stimulus+": 499})).holds
    assert not rule(group(losses, {"mgd": 1000, "stimulus+": 500})).holds
    assert rule(group({"mgd": 1.0}, {"mgd": 1000})).holds is None


def test_the_slowest_is_the_slowest_of_all() -> None:
    rule = slowest(("smgd", "moco"), ("mgd", "stimulus"))
    assert rule(group({"smgd": 0.5, "moco": 0.4, "mgd": 0.3, "stimulus": 0.3})).holds is True
    assert rule(group({"smgd": 0.09, "moco": 0.05, "mgd": 0.96, "stimulus": 1.57})).holds is False
    assert rule(group({"smgd": 0.5, "moco": 0.6, "mgd": 0.3, "stimulus": 0.3})).holds is False
    assert rule(group({"smgd": 0.5, "moco": 0.4, "mgd": 0.3})).holds is None
    claim = CLAIMS["multimnist"][0]
    paper = {"stimulus": 1.573, "stimulus-m": 2.275, "stimulus+": 2.329, "stimulus-m+": 2.318}
    found = claim.rule(group({"smgd": 0.09259, "moco": 0.0536, "mgd": 0.9637, **paper}))
    assert (claim.text, found.holds) == ("SMGD is the slowest, MoCo slightly faster", False)


def test_methods_that_were_not_trained_show_nothing() -> None:
    found = alike("mgd", "stimulus", 0.05)(group({"mgd": 2.291, "stimulus": 2.292}, start=2.303))
    assert found.holds == "not shown"
    assert "none was trained" in found.figures
    assert lower(("mgd",), ("smgd",))(group({"mgd": 2.29, "smgd": 2.30}, start=2.303)).holds == "not shown"
    assert lower(("mgd",), ("smgd",))(group({"mgd": 0.5, "smgd": 2.30}, start=2.303)).holds is True
