"""Claims: the rules decide by the numbers, in both directions."""

from __future__ import annotations

from pathlib import Path

from stimulus_moo.lab.report.claims import alike, counts, lower
from stimulus_moo.lab.report.groups import Group, group_runs
from stimulus_moo.lab.runs.reading import RecordedRun


def group(losses: dict[str, float], gradients: dict[str, int] | None = None) -> Group:
    runs = []
    for method, loss in losses.items():
        count = (gradients or {}).get(method, 100)
        record = {"step": 9, "samples": count, "gradients": count, "losses": [loss], "weights": [1.0], "sq_norm": 1.0}
        record.update(stationarity=0.1, full_losses=[loss])
        summary = {**record, "method": method, "seconds": 1.0, "diverged": False}
        settings = {"experiment": "x", "method": method, "seed": 0, "lr": 0.1, "tasks": ["only"]}
        runs.append(RecordedRun("x", method, 0, settings, [record], summary, Path("x")))
    return group_runs(runs)[0]


def test_lower_compares_the_worst_of_one_side_with_the_best_of_the_other() -> None:
    rule = lower(("stimulus", "mgd"), ("smgd", "moco"))
    assert rule(group({"stimulus": 0.1, "mgd": 0.2, "smgd": 0.3, "moco": 0.4})).holds
    found = rule(group({"stimulus": 0.1, "mgd": 0.35, "smgd": 0.3, "moco": 0.4}))
    assert not found.holds
    assert "MGD 0.35" in found.figures
    assert rule(group({"stimulus": 0.1, "mgd": 0.1})).holds is None  # nothing to compare with


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
