"""The limits of a run: which are checked, what is done, and which was reached."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist

from stimulus_moo import InvalidOption, fit
from stimulus_moo.training.limits import Limits
from tests.distributed.launch import values


def limits(**given: Any) -> Limits:
    names = ("steps", "gradients", "passes", "seconds", "tolerance", "evaluate_every")
    return Limits.check(**{"period": 10, **dict.fromkeys(names), **given})


def run(step: int = 0, gradients: int = 0, passes: int = 0, seconds: float = 0.0) -> Any:
    counters = SimpleNamespace(gradients=gradients, passes=passes)
    return SimpleNamespace(step=step, multigradient=counters, seconds=seconds, measured=None)


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


@pytest.mark.parametrize("name", ["steps", "gradients", "passes", "seconds"])
def test_bad_limits_are_named(name: str) -> None:
    for value in (0, -1, "5", True):
        with pytest.raises(InvalidOption, match=f"{name} must be .*, found {value!r}"):
            limits(**{name: value})


def fit_for_seconds() -> tuple[int, str, list[float], list[float]]:
    """Steps of one second in the first process, and of five in the second."""
    ticks = itertools.count(0, 1 + 4 * dist.get_rank())
    x = torch.randn(16, 3, generator=torch.Generator().manual_seed(0))
    options: dict[str, Any] = {"method": "stimulus", "lr": "auto", "seconds": 6, "progress": False}
    torch.manual_seed(0)
    with patch("stimulus_moo.training.run.perf_counter", lambda: float(next(ticks))):
        result = fit(torch.nn.Linear(3, 2), lambda model, batch: model(batch).square().mean(0), x, **options)
    return result.steps, result.stopped, result.history["seconds"], result.history["lr"]


def test_the_clock_of_the_first_process_ends_the_run_and_lowers_the_rate_in_all() -> None:
    first, second = values(fit_for_seconds, 2)
    assert first[:3] == (6, "seconds", [1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    assert second == first
