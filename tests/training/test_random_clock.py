"""One iterate picked online with the weights of the strongly convex theorems."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from stimulus_moo import InvalidOption, RandomClock, StateMismatch
from tests.harness import round_trip, same


def test_probabilities_are_proportional_to_the_weights() -> None:
    mu, lr, steps, runs = 1.0, 0.4, 6, 4000
    x = nn.Parameter(torch.zeros(1))
    counts = torch.zeros(steps, dtype=torch.float64)
    for seed in range(runs):
        clock = RandomClock([x], mu=mu, lr=lr, seed=seed)
        for _ in range(steps):
            clock.update()
        counts[clock.picked_at] += 1
    ratio = 1 - 0.75 * mu * lr
    weights = torch.tensor([ratio ** (1 - t) for t in range(steps)], dtype=torch.float64)
    expected = runs * weights / weights.sum()
    # chi squared with 5 degrees of freedom exceeds 20.5 with probability 0.001
    assert float(((counts - expected) ** 2 / expected).sum()) < 20.5


def test_the_picked_iterate_is_the_one_of_its_step() -> None:
    x, y = nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(()))
    clock = RandomClock([x, y], mu=1.0, lr=0.01, seed=1)
    for t in range(30):
        with torch.no_grad():
            x.fill_(t)
            y.fill_(-t)
        clock.update()
    at = clock.picked_at
    assert 0 <= at < 29  # an early one, so that a copy must have been kept
    assert [p.tolist() for p in clock.picked] == [[at, at], -at]
    clock.apply()
    assert (x.tolist(), y.item()) == ([at, at], -at)
    x.data += 1
    assert clock.picked[0].tolist() == [at, at]


def test_nothing_overflows_in_a_long_run() -> None:
    x = nn.Parameter(torch.zeros(1))
    clock = RandomClock([x], mu=1.0, lr=0.1)
    clock.seen, clock.total = 100_000, 1.0 / 0.075
    for _ in range(100):
        clock.update()
    assert clock.total == pytest.approx(1 / 0.075)  # 1 / (3 mu lr / 4), the limit of W_t
    long = RandomClock([x], mu=1e-3, lr=1e-3)
    for _ in range(100_000):
        long.total = long.ratio * long.total + 1.0
    assert long.total == pytest.approx((1 - long.ratio**100_000) / (1 - long.ratio), rel=1e-6)


def test_applying_before_any_update_changes_nothing() -> None:
    x = nn.Parameter(torch.ones(1))
    RandomClock([x], mu=1.0, lr=0.1).apply()
    assert x.item() == 1.0


def test_resume_at_any_step(tmp_path: Any) -> None:
    def picked(stop: int | None) -> tuple[int, list[float]]:
        x = nn.Parameter(torch.zeros(1))
        clock = RandomClock([x], mu=0.5, lr=0.1, seed=4)
        for t in range(20):
            if t == stop:
                state = round_trip(clock.state_dict(), tmp_path)
                clock = RandomClock([x], mu=0.5, lr=0.1, seed=77)
                clock.load_state_dict(state)
            x.data.fill_(t)
            clock.update()
        return clock.picked_at, clock.picked[0].tolist()

    assert {str(picked(stop)) for stop in range(20)} == {str(picked(None))}


def test_states_are_copies_and_foreign_ones_are_refused() -> None:
    x = nn.Parameter(torch.zeros(2))
    clock = RandomClock([x], mu=1.0, lr=0.1)
    clock.update()
    state = clock.state_dict()
    x.data += 1
    clock.update()
    assert state["picked"][0].tolist() == [0.0, 0.0]
    other = RandomClock([nn.Parameter(torch.zeros(3))], mu=1.0, lr=0.1)
    before = other.state_dict()
    for broken in (
        state,
        state | {"picked": []},
        state | {"picked": [1.0]},
        state | {"picked": 1},
        state | {"seen": None},
    ):
        with pytest.raises(StateMismatch, match="RandomClock"):
            other.load_state_dict(broken)
    assert same(other.state_dict(), before)
    other.load_state_dict(before)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mu": 0.0}, r"mu must be a finite number above 0, found 0.0"),
        ({"lr": -1.0}, r"lr must be a finite number above 0, found -1.0"),
        ({"mu": 10.0, "lr": 1.0}, "3 mu lr / 4 must be below 1, found mu=10.0 and lr=1.0"),
        ({"seed": 0.5}, "seed must be an integer .*, found 0.5"),
        ({"parameters": []}, r"parameters must be an iterable of at least one tensor, found \[\]"),
        ({"parameters": nn.Linear(1, 1)}, "parameters must be an iterable of at least one tensor, found Linear"),
        ({"parameters": ["x"]}, r"parameters must be an iterable of at least one tensor, found \['x'\]"),
    ],
)
def test_bad_options(options: dict[str, Any], message: str) -> None:
    arguments = {"parameters": [torch.zeros(1)], "mu": 1.0, "lr": 0.1} | options
    with pytest.raises(InvalidOption, match=message):
        RandomClock(**arguments)
