import dataclasses

import numpy as np
import pytest

from stimulus_moo import measure
from stimulus_moo.fronts import Front
from stimulus_moo.lab.cli import arguments
from stimulus_moo.lab.demo import patients, problems
from stimulus_moo.lab.demo.result import result_of
from stimulus_moo.lab.runs import load_runs
from stimulus_moo.lab.runs.runner import compare
from stimulus_moo.training import checkpoint

from .. import fake_lab
from .conftest import call

COMPARED = [(one.experiment, method) for one in problems.COMPARISONS for method in one.methods]


@pytest.fixture
def small(monkeypatch):
    calm = dataclasses.replace(fake_lab.TINY, build=_without_dropout)  # the start is measured once more
    tiny = {one.experiment: dataclasses.replace(calm, name=one.experiment) for one in problems.COMPARISONS}
    monkeypatch.setattr(arguments, "catalogue", lambda: (tiny, {}))
    monkeypatch.setattr(problems, "PASSES", 320)
    monkeypatch.setattr(patients, "POINTS", 3)
    monkeypatch.setattr(patients, "STEPS", 20)
    return tiny


def test_the_demo_compares_both_problems_traces_a_front_and_goes_on_by_itself(place, small):
    first = call("demo")
    assert "page: runs/demo/demo.html" in first.stdout
    assert first.stdout.count("A tiny regression") == 2
    found = len(Front.load(place / "runs" / "demo" / "front"))
    assert f"{found} models, {found} of which no other one dominates" in first.stdout
    for file in ("demo.html", "front/front.html"):
        assert (place / "runs" / "demo" / file).stat().st_size > 1e6  # with plotly
    second = call("demo")
    assert second.stdout == first.stdout
    assert second.stderr.count("complete already") == problems.SEEDS * len(COMPARED)
    spent = {(run.experiment, run.method): run.summary["passes"] for run in load_runs(place / "runs" / "demo")}
    assert set(spent) == set(COMPARED)
    assert all(320 <= passes < 320 + 2 * 64 for passes in spent.values())  # the last step may be an anchor


def test_results_are_ranked_by_the_worst_loss_relative_to_its_start(place, small):
    experiment, comparison = small["digits-scaled"], problems.SCALED
    compare(experiment, comparison.methods, comparison.settings(experiment), [0], place)
    found = result_of(comparison, experiment, load_runs(place))
    means = [score.mean for _, score in found.ranked]
    assert len(means) == 2
    assert means == sorted(means)
    best = found.group.entries[0]
    assert best.label == problems.NAMES[best.method]
    problem = experiment.build(experiment.settings, 0, None)
    start = measure(problem.model, problem.losses, [problem.data]).losses
    ends = best.runs[0].summary["full_losses"]
    assert found.left[0].values[0] == pytest.approx(max(np.divide(ends, start)), rel=1e-5)  # float32
    problem.model.load_state_dict(checkpoint.load(best.runs[0].folder)["model"])
    assert found.end.losses == pytest.approx(measure(problem.model, problem.losses, [problem.data]).losses, rel=1e-5)


def _without_dropout(*given):
    problem = fake_lab.build(*given)
    return dataclasses.replace(problem, model=problem.model[1])
