"""Front: what it computes, chooses, draws, writes and reads."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from stimulus_moo import InvalidOption, StateMismatch
from stimulus_moo.fronts import Front, FrontPoint, files

LOSSES = ([0.0, 1.0], [0.2, 0.5], [0.6, 0.6], [1.0, 0.1])


def front(losses: Any = LOSSES, model: torch.nn.Module | None = None) -> Front:
    states = [torch.nn.Linear(2, 1).state_dict() for _ in losses]
    points = [
        FrontPoint(k, list(f), [1.0 / len(f)] * len(f), 1e-6, 10, {"end": 0}, state)
        for k, (f, state) in enumerate(zip(losses, states, strict=True))
    ]
    return Front(points, model or torch.nn.Linear(2, 1))


def test_numbers_of_a_front() -> None:
    found = front()
    assert found.nondominated.tolist() == [True, True, False, True]
    assert found.hypervolume([1.0, 1.0]) == pytest.approx(0.8 * 0.5)
    assert found.passes == 40
    assert found.losses.shape == found.weights.shape == (4, 2)
    assert repr(found) == "Front(4 points, 3 of them nondominated, 2 losses)"


def test_points_are_chosen_by_preference_and_by_bounds() -> None:
    found = front()
    assert found.choose(preference=[1.0, 1.0]).number == 1
    assert found.choose(preference=[1.0, 20.0]).number == 3
    assert found.choose(bounds={1: 0.55}).number == 1
    assert found.choose(bounds={1: "0%"}).number == 3
    with pytest.raises(InvalidOption, match=r"the closest, point 3, has the losses \[1.0, 0.1\]"):
        found.choose(bounds={1: 0.05})
    with pytest.raises(InvalidOption, match="either a preference or bounds"):
        found.choose()
    with pytest.raises(InvalidOption, match="preference must hold 2 positive numbers"):
        found.choose(preference=[1.0])
    for bound in ("x", "5", "-5%"):
        with pytest.raises(InvalidOption, match=r"bounds\[0\] must be a number, or a share such as '5%'"):
            found.choose(bounds={0: bound})


def test_models_have_the_parameters_of_their_points() -> None:
    found = front()
    for point, model in zip(found.points, found.models(), strict=True):
        assert torch.equal(model.weight, point.state["weight"])
    x = torch.randn(8, 2)
    measured = found.measured(lambda m, batch: (m(batch).square().mean(), m(batch).mean()), [x])
    assert measured.losses[2, 1] == pytest.approx(found.model(found.points[2])(x).mean().item())
    with pytest.raises(InvalidOption, match="this front has no model"):
        Front(found.points).model(found.points[0])


def test_a_saved_front_is_read_again(tmp_path: Path) -> None:
    found = front()
    found.save(tmp_path)
    again = Front.load(tmp_path, torch.nn.Linear(2, 1))
    assert np.array_equal(again.losses, found.losses)
    assert all(
        torch.equal(a.state[name], b.state[name])
        for a, b in zip(again.points, found.points, strict=True)
        for name in ("weight", "bias")
    )
    assert torch.load(tmp_path / "point-001.pt", weights_only=True).keys() == {"weight", "bias"}
    page = (tmp_path / "front.html").read_text()
    assert "point-003.pt" in page
    assert not any(f'{part}="http' in page.split("<script>")[0] for part in ("src", "href"))


def test_runs_that_were_left_out_are_counted_and_kept_without_parameters(tmp_path: Path) -> None:
    whole = front()
    whole.save(tmp_path)
    left_out = [replace(whole.points[2], state={})]
    rest = Front([point for point in whole.points if point.number != 2], torch.nn.Linear(2, 1), left_out=left_out)
    assert rest.passes == whole.passes
    rest.save(tmp_path)
    again = Front.load(tmp_path)
    assert [point.number for point in again.points] == [0, 1, 3]
    assert [run.losses for run in again.left_out] == [[0.6, 0.6]]
    assert not (tmp_path / "point-002.pt").exists()


def test_damaged_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(StateMismatch, match=r"there is no front in .*: front.json is missing"):
        Front.load(tmp_path)
    front().save(tmp_path)
    (tmp_path / "point-002.pt").write_bytes(b"nothing")
    with pytest.raises(StateMismatch, match="a point of the front in"):
        Front.load(tmp_path)
    (tmp_path / "front.json").write_text(json.dumps({"version": 9, "points": []}))
    with pytest.raises(StateMismatch, match="not a front of this version"):
        Front.load(tmp_path)
    (tmp_path / "front.json").write_text("{")
    with pytest.raises(StateMismatch, match="cannot be read"):
        Front.load(tmp_path)


@pytest.mark.parametrize("count", [2, 3, 4])
def test_fronts_of_any_number_of_losses_are_drawn(count: int) -> None:
    losses = np.random.default_rng(0).random((5, count)).tolist()
    axes = front(losses).plot()
    drawn = len(axes.lines) if count == 4 else sum(len(c.get_offsets()) for c in axes.collections)
    assert drawn == 5
    if count < 4:
        assert axes.get_xlabel() == "f0"


def test_names_and_points_are_checked() -> None:
    with pytest.raises(InvalidOption, match="at least one point"):
        Front([])
    with pytest.raises(InvalidOption, match=r"one name per objective \(2\), found 1"):
        Front(front().points, names=["a"])
    with pytest.raises(InvalidOption, match="reference must hold 2 numbers"):
        front().hypervolume([1.0])


@pytest.mark.parametrize("bounds", [{2: 1.0}, {"f0": 0.5}, {-1: 0.5}])
def test_bounds_of_other_objectives_are_refused(bounds: Any) -> None:
    with pytest.raises(InvalidOption, match="objective"):
        front().choose(bounds=bounds)


def test_points_with_one_number_are_not_saved(tmp_path: Path) -> None:
    both = [*front().points, *front().points[:1]]
    with pytest.raises(InvalidOption, match=r"points must have different numbers to be saved, found \[0\] twice"):
        Front(both, torch.nn.Linear(2, 1)).save(tmp_path / "front")
    assert not (tmp_path / "front").exists()
    Front([*both[:-1], replace(both[-1], number=7)], torch.nn.Linear(2, 1)).save(tmp_path / "front")
    assert len(Front.load(tmp_path / "front")) == 5


def test_parameters_of_an_interrupted_call_do_not_stay(tmp_path: Path) -> None:
    """The file of a point that no table lists is of a call that was interrupted before it wrote the table."""
    point = front().points[0]
    torch.save({"weight": torch.full((1, 2), 9.0), "bias": torch.zeros(1)}, tmp_path / "point-000.pt")
    files.write(tmp_path, [point], [], None, {})
    (loaded,) = Front.load(tmp_path).points
    assert torch.equal(loaded.state["weight"], point.state["weight"])
