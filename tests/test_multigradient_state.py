"""States are copies, go into fresh and used objects, and are refused by name where they do not fit.

That every estimator with every weighting resumes bit for bit is tested in ``tests/test_properties.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from stimulus_moo import (
    MinNorm,
    MultiGradient,
    Smoothed,
    StateMismatch,
    Storm,
)
from tests.database import BATCHES as FOUR
from tests.database import ESTIMATORS, WEIGHTINGS
from tests.harness import round_trip, same, train, two_heads, two_losses

BATCHES = (FOUR * 2)[:7]


def build(estimator: str, weighting: str) -> MultiGradient:
    weighing = WEIGHTINGS[weighting].build((0, 1))
    return MultiGradient(two_heads(), two_losses, ESTIMATORS[estimator].build(), weighing)


def resumed(mg: MultiGradient, fresh: MultiGradient, folder: Any) -> MultiGradient:
    fresh.objective.model.load_state_dict(mg.objective.model.state_dict())
    fresh.load_state_dict(round_trip(mg.state_dict(), folder))
    return fresh


def test_a_state_is_a_copy_in_both_directions() -> None:
    mg = build("recursive", "smoothed, schedule")
    train(mg, BATCHES[:2])
    state, kept = mg.state_dict(), mg.state_dict()
    train(mg, BATCHES[2:])
    assert same(state, kept)
    other = build("recursive", "smoothed, schedule")
    other.load_state_dict(state)
    train(other, BATCHES[2:])
    assert same(state, kept)


def test_a_state_goes_back_into_the_object_it_came_from() -> None:
    mg = build("page, adaptive", "smoothed, schedule")
    train(mg, BATCHES[:2])
    model, state = {k: v.clone() for k, v in mg.objective.model.state_dict().items()}, mg.state_dict()
    first = train(mg, BATCHES[2:])
    mg.objective.model.load_state_dict(model)
    mg.load_state_dict(state)
    assert torch.equal(train(mg, BATCHES[2:]), first)


def test_a_fresh_state_goes_into_a_used_object() -> None:
    used, fresh = build("recursive, adaptive", "smoothed, schedule"), build("recursive, adaptive", "smoothed, schedule")
    train(used, BATCHES)
    used.load_state_dict(fresh.state_dict())
    assert same(used.state_dict(), fresh.state_dict())


def test_a_model_changed_before_loading_is_adopted(tmp_path: Any) -> None:
    def build(frozen: bool) -> MultiGradient:
        model = two_heads()
        model.left.requires_grad_(not frozen)
        return MultiGradient(model, two_losses, Storm(0.3))

    mg = build(frozen=False)
    train(mg, BATCHES[:3])
    late = build(frozen=True)
    late.objective.model.left.requires_grad_(True)  # thawed between construction and loading
    expected = train(resumed(mg, build(frozen=False), tmp_path), BATCHES[3:])
    assert torch.equal(train(resumed(mg, late, tmp_path), BATCHES[3:]), expected)


class Wide(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Linear(4, 6, dtype=torch.float64)
        self.left = nn.Linear(6, 1, dtype=torch.float64)
        self.right = nn.Linear(6, 1, dtype=torch.float64)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        hidden = self.trunk(x)
        return self.left(hidden)[:, 0], self.right(hidden)[:, 0]


def used(estimator: str = "storm", weighting: str = "smoothed") -> MultiGradient:
    mg = build(estimator, weighting)
    train(mg, BATCHES[:2])
    return mg


BROKEN: dict[str, tuple[Callable[[], Any], str]] = {
    "no dict": (lambda: 3, "state of MultiGradient must be a dict with .* found int"),
    "empty": (dict, "state of MultiGradient must be a dict with"),
    "an estimator's": (lambda: used().estimator.state_dict(), "state of MultiGradient must be a dict with .*'kind'"),
    "unknown entry": (lambda: used().state_dict() | {"more": 1}, "state of MultiGradient must be a dict with .*'more'"),
    "version": (lambda: used().state_dict() | {"version": 2}, "MultiGradient.version is 2; .* reads 5"),
    "engine": (
        lambda: used().state_dict() | {"engine": "warp"},
        "MultiGradient.engine must be one of .*, found 'warp'",
    ),
    "step": (lambda: used().state_dict() | {"step": -1}, "MultiGradient.step must be a count, found -1"),
    "samples": (lambda: used().state_dict() | {"samples": "3"}, "MultiGradient.samples must be a count, found '3'"),
    "objectives": (lambda: used().state_dict() | {"objectives": 3}, "MultiGradient.objectives is 3, this model has 2"),
    "objectives kind": (lambda: used().state_dict() | {"objectives": "2"}, "MultiGradient.objectives must be a pos"),
    "another estimator": (
        lambda: used("tracking").state_dict(),
        "MultiGradient.estimator is of kind 'Tracking', this object is a Storm",
    ),
    "another weighting": (
        lambda: used(weighting="min-norm").state_dict(),
        "MultiGradient.weighting is of kind 'MinNorm', this object is a Smoothed",
    ),
    "another inner weighting": (
        lambda: used(weighting="smoothed module").state_dict(),
        r"MultiGradient.weighting.weighting is of kind 'Adapter\(Memory\)', this object is a MinNorm",
    ),
    "another model": (
        lambda: model_state(Wide()),
        r"MultiGradient.rows\[0\]\['trunk.weight'\] has shape \[6, 4\], the model has \[5, 4\]",
    ),
}


def model_state(model: nn.Module) -> dict[str, Any]:
    mg = MultiGradient(model, two_losses, Storm(0.3), Smoothed(MinNorm(), 0.9))
    train(mg, BATCHES[:2])
    return mg.state_dict()


@pytest.mark.parametrize("name", BROKEN)
def test_a_state_that_does_not_fit_is_refused_by_name_and_changes_nothing(name: str) -> None:
    make, message = BROKEN[name]
    state = make()
    mg = used()
    before = mg.state_dict()
    with pytest.raises(StateMismatch, match=message):
        mg.load_state_dict(state)
    assert same(mg.state_dict(), before)


def test_a_state_of_another_number_of_objectives_meets_the_losses(tmp_path: Any) -> None:
    from stimulus_moo import InvalidLosses

    mg = used()
    fresh = MultiGradient(
        two_heads(), lambda m, b: (*two_losses(m, b), two_losses(m, b)[0]), Storm(0.3), Smoothed(MinNorm(), 0.9)
    )
    fresh.load_state_dict(round_trip(mg.state_dict(), tmp_path))
    with pytest.raises(InvalidLosses, match="losses returned 2 losses before and 3 now"):
        fresh.backward(BATCHES[0])
