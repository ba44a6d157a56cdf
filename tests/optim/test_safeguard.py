"""The guard: nothing changes while nothing fires; steps are kept short; what made things worse is taken back."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from stimulus_moo import (
    HeavyBall,
    InvalidOption,
    MiniBatch,
    MultiGradient,
    NonFiniteError,
    Recursive,
    Safeguard,
    StateMismatch,
    ledger,
)
from tests.test_probe import X, Y, flat, losses, network

OPTIMIZERS: dict[str, Callable[[Any, float], Any]] = {
    "sgd": lambda p, lr: torch.optim.SGD(p, lr=lr),
    "momentum": lambda p, lr: torch.optim.SGD(p, lr=lr, momentum=0.9),
    "heavy ball": lambda p, lr: HeavyBall(p, lr=lr, momentum=0.5),
    "adam": lambda p, lr: torch.optim.Adam(p, lr=lr),
}


def batch(k: int) -> tuple[Tensor, Tensor]:
    rows = slice(8 * k % 40, 8 * k % 40 + 8)
    return X[rows], Y[rows]


def train(name: str, lr: float, *, guarded: bool, steps: int = 30, **options: Any) -> Any:
    model = network()
    mg = MultiGradient(model, losses, Recursive([(X, Y)], 5))
    optimizer = OPTIMIZERS[name](model.parameters(), lr)
    guard = Safeguard(optimizer, mg, **options) if guarded else None
    taken = []
    for k in range(steps):
        (guard or mg).backward(batch(k))
        start, norm, smoothness = flat(model), mg.norm, guard.smoothness if guard else None
        (guard or optimizer).step()
        taken.append((float((flat(model) - start).norm()), norm, smoothness))
    return model, mg, guard, taken


@pytest.mark.parametrize("staged", [True, False])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_while_nothing_fires_nothing_changes_bit_for_bit(
    name: str, staged: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger, "STAGED_ENTRIES", 1 << 16 if staged else 0)
    plain, mg, _, _ = train(name, 1e-3, guarded=False)
    model, other, guard, _ = train(name, 1e-3, guarded=True, longest=1e6)
    assert (guard.shortened, guard.taken_back) == (0, 0)
    assert guard.smoothness > 0
    assert torch.equal(flat(plain), flat(model))
    assert (mg.samples, mg.gradients) == (other.samples, other.gradients)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_no_step_is_longer_than_the_smoothness_allows(name: str) -> None:
    _, _, guard, taken = train(name, 3.0, guarded=True)
    assert guard.shortened > 0
    for length, norm, smoothness in taken:
        if smoothness is not None:
            assert length <= norm / smoothness * (1 + 1e-5)


@pytest.mark.parametrize("lr", [1e4, 1e30, 1e100])
@pytest.mark.parametrize("name", ["sgd", "heavy ball"])
def test_any_step_size_trains(name: str, lr: float) -> None:
    _, mg, guard, _ = train(name, lr, guarded=True, steps=120)
    model = guard.multigradient.objective.model
    assert losses(model, (X, Y)).max() < losses(network(), (X, Y)).max()
    assert guard.taken_back > 0
    assert mg.gradients == 24 * 40 + 96 * 16 + guard.taken_back * 16


def cliff(model: Any, b: Tensor) -> Tensor:
    """Two valleys whose walls are steep on the far side."""
    x = model.weight[0]
    return (
        torch.stack([(x - 1).square() + torch.exp(6 * (x - 2)), (x - 1.2).square() + torch.exp(6 * (x - 2))]).mean(
            dim=1
        )
        + 0.0 * b.mean()
    )


def slope(start: float, lr: float, loss: Any = cliff, **options: Any) -> tuple[nn.Linear, MultiGradient, Safeguard]:
    model = nn.Linear(1, 1, bias=False).double()
    nn.init.constant_(model.weight, start)
    data = torch.ones(4, 1, dtype=torch.float64)
    mg = MultiGradient(model, loss, Recursive([data], 100))
    return model, mg, Safeguard(HeavyBall(model.parameters(), lr=lr, momentum=0.5), mg, **options)


def test_a_step_that_made_a_loss_rise_sharply_is_taken_back(caplog: pytest.LogCaptureFixture) -> None:
    model, mg, guard = slope(-2.0, 0.9)
    data = torch.ones(2, 1, dtype=torch.float64)
    guard.backward(data)
    guard.step()
    jumped = model.weight.item()
    assert jumped > 2.5  # over the wall
    spent = mg.gradients
    with caplog.at_level(logging.INFO, "stimulus_moo"):
        guard.backward(data)
    assert guard.taken_back >= 1
    assert "taken back" in caplog.text
    times = guard.taken_back
    assert model.weight.item() == pytest.approx(-2.0 + (jumped + 2.0) * 0.25 ** (times * (times + 1) / 2))
    assert mg.gradients == spent + 4 * (guard.taken_back + 1)  # what was evaluated in vain is counted
    assert guard.scale == 0.25 ** (times * (times + 1) / 2)
    assert not guard.optimizer.state  # momentum is dropped
    rate = guard.optimizer.param_groups[0]["lr"]
    for _ in range(100):
        guard.step()
        guard.backward(data)
    assert guard.optimizer.param_groups[0]["lr"] == rate  # schedules see their own
    assert guard.scale == 1.0
    assert abs(model.weight.item() - 1.1) < 0.2


def rooted(model: Any, b: Tensor) -> Tensor:
    x = model.weight[0]
    return torch.stack([2 - torch.sqrt(4 - (x - 1).square()), (x - 1.2).square()]).mean(dim=1) + 0.0 * b.mean()


def test_a_step_into_nan_is_taken_back() -> None:
    model, _, guard = slope(-0.9, 3.0, rooted)
    data = torch.ones(2, 1, dtype=torch.float64)
    for _ in range(60):
        guard.backward(data)
        guard.step()
    assert guard.taken_back > 0
    assert abs(model.weight.item() - 1.1) < 0.3


def test_where_taking_back_does_not_help_the_error_is_raised_and_nothing_is_lost() -> None:
    model, mg, guard = slope(0.5, 0.1, patience=3)
    data = torch.ones(2, 1, dtype=torch.float64)
    for _ in range(3):
        guard.backward(data)
        guard.step()
    kept, state, counts = model.weight.item(), dict(guard.optimizer.state), (mg.t, mg.samples)
    with pytest.raises(NonFiniteError):
        guard.backward(data * float("nan"))
    assert model.weight.item() == kept
    assert dict(guard.optimizer.state) == state
    assert guard.scale == 1.0
    assert (mg.t, mg.samples, guard.taken_back) == (*counts, 0)
    guard.backward(data)


def test_one_point_has_nothing_to_compare() -> None:
    model = network()
    mg = MultiGradient(model, losses, MiniBatch())
    guard = Safeguard(torch.optim.SGD(model.parameters(), lr=0.1), mg)
    for k in range(5):
        guard.backward(batch(k))
        guard.step()
    assert (guard.smoothness, guard.shortened, guard.taken_back) == (None, 0, 0)


def test_the_state_round_trips() -> None:
    _, _, guard, _ = train("sgd", 3.0, guarded=True)
    model = network()
    mg = MultiGradient(model, losses, Recursive([(X, Y)], 5))
    fresh = Safeguard(torch.optim.SGD(model.parameters(), lr=3.0), mg)
    fresh.load_state_dict(guard.state_dict())
    assert fresh.state_dict() == guard.state_dict()
    with pytest.raises(StateMismatch, match="smoothness"):
        fresh.load_state_dict({**guard.state_dict(), "smoothness": "much"})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"memory": 2.0}, "memory"),
        ({"rise": 0.0}, "rise"),
        ({"shorten": 0.0}, "shorten"),
        ({"recover": 0.5}, "recover"),
        ({"patience": 0}, "patience"),
        ({"longest": -1.0}, "longest"),
    ],
)
def test_options_are_checked(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidOption, match=message):
        train("sgd", 0.1, guarded=True, steps=1, **options)


def test_the_objects_are_checked() -> None:
    model = network()
    mg = MultiGradient(model, losses, MiniBatch())
    with pytest.raises(InvalidOption, match="optimizer must be"):
        Safeguard(model, mg)  # type: ignore[arg-type]
    with pytest.raises(InvalidOption, match="multigradient must be"):
        Safeguard(torch.optim.SGD(model.parameters(), lr=1.0), model)  # type: ignore[arg-type]
