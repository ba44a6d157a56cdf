"""Fronts traced on problems whose front is known, resumed and in parallel; and moves along them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from stimulus_moo import InvalidOption, StateMismatch, fit
from stimulus_moo.fronts import Front, FrontPoint, navigate, pareto_front
from stimulus_moo.fronts.job import Job
from stimulus_moo.fronts.trace import Trace
from stimulus_moo.lab.problem import Problem
from stimulus_moo.lab.synthetic.fronts import FRONTS
from stimulus_moo.lab.synthetic.point import Point

N = 36


def problem(name: str = "fonseca-fleming") -> Problem:
    like = FRONTS[name].start(torch.Generator().manual_seed(1))
    return FRONTS[name].problem(N, noise=0.3, seed=0, start=torch.full_like(like, 0.3))


def trace(case: Problem, **options: Any) -> Front:
    return pareto_front(case.model, case.losses, case.data, **{"steps": 240, "anchor_batch": N, **options})


def test_a_concave_front_is_covered_at_the_price_of_four_points() -> None:
    case = problem()
    start = [p.clone() for p in case.model.parameters()]
    front = trace(case, points=11)
    known = FRONTS["fonseca-fleming"]
    assert float(known.distances(torch.tensor(front.losses)).max()) < 1e-3
    best = Front([*front.points]).hypervolume([1.0, 1.0])
    assert best > 0.9 * 0.3  # of the area under the front up to (1, 1), about 0.30
    ordered = front.losses[front.losses[:, 0].argsort()]
    assert np.linalg.norm(np.diff(ordered, axis=0), axis=1).max() < 0.3
    alone = fit(
        problem().model, case.losses, case.data, preference=[1, 1], steps=240, anchor_batch=N, progress=False
    ).passes
    assert front.passes <= 4 * alone
    assert all(torch.equal(a, b) for a, b in zip(start, case.model.parameters(), strict=True))


def test_the_ends_come_first_then_the_centre_from_scratch() -> None:
    front = trace(problem(), points=5, steps=60)
    runs = sorted((*front.points, *front.left_out), key=lambda run: run.number)
    assert [run.target.get("end") for run in runs[:3]] == [0, 1, None]
    assert [run.target.get("fresh", False) for run in runs] == [False, False, True, *[False] * (len(runs) - 3)]


def test_an_interrupted_front_continues_to_the_same_end(tmp_path: Path) -> None:
    case, calls = problem(), 0
    whole = trace(problem(), points=5, steps=60)

    def losses(model: Any, batch: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 150:
            raise KeyboardInterrupt
        return case.losses(model, batch)

    stopped = Problem(case.model, losses, case.data, case.tasks)
    with pytest.raises(KeyboardInterrupt):
        trace(stopped, points=5, steps=60, folder=tmp_path)
    done = len(Front.load(tmp_path))
    assert 0 < done < 5
    again = trace(case, points=5, steps=60, folder=tmp_path)
    assert np.allclose(again.losses, whole.losses, rtol=0, atol=1e-12)
    assert (tmp_path / "front.html").exists()
    with pytest.raises(StateMismatch, match="was made with steps=60, this call has 61"):
        trace(case, points=5, steps=61, folder=tmp_path)


def linear_losses(model: torch.nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    return (model(batch[0]) - batch[1]).square().mean(0)


def linear_data() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(36, 2, generator=generator, dtype=torch.float64)
    return x, torch.stack([x[:, 0], x[:, 1], x.sum(1)], 1)


def test_three_losses_in_two_processes() -> None:
    torch.manual_seed(0)
    model = torch.nn.Linear(2, 1, dtype=torch.float64)
    front = pareto_front(model, linear_losses, linear_data(), points=4, steps=150, workers=2, names=["a", "b", "c"])
    assert len(front) == 4
    assert front.names == ["a", "b", "c"]
    assert all(float(front.losses[s, s]) == pytest.approx(front.losses[:, s].min(), abs=0.05) for s in range(3))


def test_counts_and_progress(capsys: pytest.CaptureFixture[str]) -> None:
    front = pareto_front(
        torch.nn.Linear(2, 1, dtype=torch.float64),
        lambda m, batch: linear_losses(m, batch)[:2],
        linear_data(),
        points=3,
        steps=40,
        counts=lambda batch: [len(batch[0])] * 2,
        progress=True,
    )
    assert len(front) == 3
    told = capsys.readouterr().err
    assert "run 3: losses" in told
    assert "3 of 3 points" in told


def _run(number: int, x: float, losses: list[float], target: dict[str, Any]) -> FrontPoint:
    return FrontPoint(number, losses, [0.5, 0.5], 0.0, 10, target, {"x": torch.tensor([x], dtype=torch.float64)})


def test_an_end_is_trained_again_where_its_loss_is_smaller() -> None:
    def losses(model: Any, batch: Any) -> Any:
        x, noise = model().sum(), 0 * batch.mean()
        return x.square() + noise, 1.0 - torch.exp(-50 * (x - 0.5).square()) / 2 - torch.exp(-50 * (x - 0.9).square())

    job = Job(Point([0.0]), losses, torch.zeros(4, 1, dtype=torch.float64), 10, {})
    ends = [_run(s, x, f, {"end": s, "from": None}) for s, (x, f) in enumerate([(0.0, [0.0, 1.0]), (0.5, [0.25, 0.5])])]
    assert "end" not in Trace(job, [0.3, 1.0], ends, 5, lambda kept, left_out: None).targets(1)[0][1]  # a ray first
    ray = {"preference": [1.0, 1.0], "reference": [0.0, 0.0]}
    ends.append(_run(2, 0.7, [0.49, 0.98], ray))
    on_line = Trace(job, [0.3, 1.0], ends, 5, lambda kept, left_out: None)
    ((number, target, (start,)),) = on_line.targets(1)
    assert (number, target["end"], target["from"]) == (3, 1, 1)
    assert start["x"].item() == pytest.approx(0.9)  # beyond the end, as seen from the other one
    assert "end" not in on_line.targets(1)[0][1]  # the line is looked at once
    better = [*ends[:2], _run(2, 0.8, [0.64, 0.2], ray)]
    found = Trace(job, [0.3, 1.0], better, 5, lambda kept, left_out: None)
    assert found.targets(1)[0][1]["from"] == 2


def test_a_centre_that_no_model_between_the_ends_leads_to_is_found_from_scratch() -> None:
    own, both = torch.tensor([[-1.0, -1.0], [1.0, -1.0]]).double(), torch.tensor([0.0, 1.0]).double()

    def losses(model: Any, batch: Any) -> Any:
        wells = torch.exp(-2 * (model() - own).square().sum(1)) + 0.6 * torch.exp(-2 * (model() - both).square().sum())
        return 1.0 - wells + 0 * batch.mean()

    data = torch.zeros(4, 1, dtype=torch.float64)
    job = Job(Point([0.0, 0.2]), losses, data, 200, {"batch_size": 4})
    states = [{"x": x} for x in own]
    ends = [
        FrontPoint(s, job.value(state), [0.5, 0.5], 0.0, 10, {"end": s, "from": None}, state)
        for s, state in enumerate(states)
    ]
    found = Trace(job, job.value(job.model.state_dict()), ends, 5, lambda kept, left_out: None)
    ((number, target, starts),) = found.targets(1)
    assert (number, target["fresh"]) == (2, True)
    assert torch.equal(starts[0]["x"], torch.tensor([0.0, 0.2], dtype=torch.float64))
    between = job.train(number, {**target, "fresh": False}, starts[1:])
    assert min(between.losses) > 0.8  # a saddle point
    centre = job.train(number, target, starts)
    assert max(centre.losses) < 0.41
    assert centre.passes > between.passes


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"points": 1}, "points must be at least the number of losses, 2, found 1"),
        ({"weighting": None}, "weighting cannot be given to pareto_front"),
        ({"points": 0}, "points must be a positive integer"),
        ({"method": "stimulus-m"}, "method cannot be given to pareto_front"),
    ],
)
def test_arguments_are_checked(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidOption, match=message):
        trace(problem(), **options)


def test_moves_there_and_back_return_to_the_start() -> None:
    case = problem("two-bowls")
    fit(case.model, case.losses, case.data, preference=[1.0, 1.0], steps=240, anchor_batch=N, progress=False)
    options: dict[str, Any] = {"steps": 120, "anchor_batch": N}
    first = navigate(case.model, case.losses, case.data, improve=0, by=0.05, **options)
    assert first.improved == pytest.approx(0.05, abs=1e-3)
    assert first.after[1] > first.before[1]
    assert first.stationarity_after < 1e-6
    navigate(case.model, case.losses, case.data, improve=0, by=0.05, **options)
    for _ in range(2):
        last = navigate(case.model, case.losses, case.data, improve=0, by=1 - 1 / 0.95, **options)
    assert last.after == pytest.approx(first.before, rel=0.02)
    assert last.missed == 0.0


def test_an_impossible_move_leaves_the_model_at_the_best() -> None:
    model = Point([0.5])
    data = torch.zeros(9, 1, dtype=torch.float64)

    def losses(model: Any, batch: Any) -> Any:
        return (model() - 1).square().sum() + 1.0 + 0 * batch.mean(), (model() + 1).square().sum() + 0 * batch.mean()

    move = navigate(model, losses, data, improve=0, by=0.5)
    assert move.after[0] == pytest.approx(1.0, abs=1e-2)
    assert move.missed == pytest.approx(move.after[0] - 0.625, abs=1e-6)
    with pytest.raises(InvalidOption, match="improve must be below the number of losses, 2, found 2"):
        navigate(model, losses, data, improve=2)
    with pytest.raises(InvalidOption, match="bounds cannot be given to navigate"):
        navigate(model, losses, data, bounds={})


@pytest.mark.filterwarnings("ignore::stimulus_moo.StimulusWarning")  # of the step size
def test_a_move_that_only_does_harm_leaves_the_model_where_it_was() -> None:
    model = Point([0.5])

    def losses(model: Any, batch: Any) -> Any:
        return (model() - 1).square().sum() + 1.0 + 0 * batch.mean(), (model() + 1).square().sum() + 0 * batch.mean()

    data = torch.zeros(9, 1, dtype=torch.float64)
    move = navigate(model, losses, data, improve=0, by=0.01, lr=30.0, guard=False, steps=5)
    assert move.after == move.before
    assert move.improved == 0.0
    assert move.missed == pytest.approx(0.01 * move.before[0])
    assert model().tolist() == [0.5]
