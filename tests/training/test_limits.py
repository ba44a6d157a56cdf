"""The limits of a run: which are checked, what is done, and which was reached."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from stimulus_moo import InvalidOption, fit
from stimulus_moo.data.sources import as_source
from stimulus_moo.distributed.group import Alone
from stimulus_moo.training.limits import Limits


def limits(**given: Any) -> Limits:
    names = ("steps", "gradients", "passes", "seconds", "tolerance", "evaluate_every")
    return Limits.check(**{"period": 10, **dict.fromkeys(names), **given})


def run(step: int = 0, gradients: int = 0, passes: int = 0, seconds: float = 0.0, samples: int | None = None) -> Any:
    counters = SimpleNamespace(gradients=gradients, passes=passes)
    source = as_source(torch.zeros(samples, 1)) if samples else SimpleNamespace(finite=False)
    found = SimpleNamespace(step=step, multigradient=counters, seconds=seconds, measured=None)
    found.settings, found.history = SimpleNamespace(source=source), SimpleNamespace(objectives=3)
    return found


@pytest.mark.parametrize("given", [{"gradients": 1}, {"passes": 1}, {"seconds": 1}, {"tolerance": 0.1}])
def test_a_thousand_steps_are_the_limit_where_no_other_is_given(given: dict[str, Any]) -> None:
    assert limits().steps == 1000
    assert limits(**given).steps is None


def test_the_closest_limit_says_how_much_is_done() -> None:
    all_four = limits(steps=100, gradients=1000, passes=4000, seconds=10.0)
    spent = run(step=10, gradients=200, passes=1200, seconds=4.0)
    assert [limits(**{name: getattr(all_four, name)}).done(spent) for name in ("steps", "gradients", "passes")] == [
        0.1,
        0.2,
        0.3,
    ]
    assert all_four.done(spent) == 0.4
    assert limits(seconds=10.0).done(run(seconds=12.0)) == 1.0
    assert limits(tolerance=0.1).done(spent) == 0.0


@pytest.mark.parametrize("name", ["steps", "gradients", "passes", "seconds"])
def test_a_limit_is_reached_when_it_is_spent(name: str) -> None:
    field = "step" if name == "steps" else name
    assert limits(**{name: 5}).reached(run(**{field: 4})) is None
    assert limits(**{name: 5}).reached(run(**{field: 5})) == name


def test_an_anchor_has_at_most_a_tenth_of_the_evaluations_so_far() -> None:
    assert not limits(steps=10_000).affords_anchor(run(gradients=999, samples=100))
    assert limits(steps=10_000).affords_anchor(run(gradients=1_000, samples=100))
    assert limits(steps=10_000).affords_anchor(run())  # a stream has no anchors


@pytest.mark.parametrize(("name", "needed"), [("gradients", 200), ("passes", 400)])  # S = 3
def test_an_anchor_and_the_period_after_it_fit_into_the_budget(name: str, needed: int) -> None:
    spent = {"gradients": 5_000, "passes": 8_000}
    enough, less = (limits(**{name: spent[name] + needed - k}) for k in (0, 1))
    assert enough.affords_anchor(run(**spent, samples=100))
    assert not less.affords_anchor(run(**spent, samples=100))


@pytest.mark.parametrize("name", ["steps", "gradients", "passes", "seconds"])
def test_bad_limits_are_named(name: str) -> None:
    for value in (0, -1, "5", True):
        with pytest.raises(InvalidOption, match=f"{name} must be .*, found {value!r}"):
            limits(**{name: value})


class Second(Alone):
    """The second process of two: what it hears is the clock of the first, which has made steps of one second."""

    def __init__(self) -> None:
        self.heard = itertools.count(1)

    def broadcast(self, make: Callable[[], Any]) -> Any:
        return float(next(self.heard)) if isinstance(make(), float) else make()


def test_the_clock_of_the_first_process_ends_the_run_and_lowers_the_rate_in_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def train(step: float, group: Alone) -> tuple[int, str, list[float], list[float]]:
        ticks = itertools.count(0.0, step)
        monkeypatch.setattr("stimulus_moo.training.run.perf_counter", lambda: next(ticks))
        monkeypatch.setattr("stimulus_moo.training.run.find_group", lambda process_group, shard: group)
        torch.manual_seed(0)
        model, x = torch.nn.Linear(3, 2), torch.randn(16, 3)
        options: dict[str, Any] = {"method": "stimulus", "lr": "auto", "seconds": 6, "progress": False}
        result = fit(model, lambda model, batch: model(batch).square().mean(0), x, **options)
        return result.steps, result.stopped, result.history["seconds"], result.history["lr"]

    first = train(1.0, Alone())
    assert first[:3] == (6, "seconds", [1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    assert train(5.0, Second()) == first  # its own clock is at 5 after one step
    assert train(5.0, Alone())[0] == 2
