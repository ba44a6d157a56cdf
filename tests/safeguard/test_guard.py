"""The guard: nothing changes while nothing fires; no recursion over long steps; what made things worse is undone."""

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
)
from stimulus_moo._engine import store
from tests._engine.test_observation import X, Y, flat, losses, network
from tests.database import METHODS, Run
from tests.harness import jacobian

OPTIMIZERS: dict[str, Callable[[Any, float], Any]] = {
    "sgd": lambda p, lr: torch.optim.SGD(p, lr=lr),
    "momentum": lambda p, lr: torch.optim.SGD(p, lr=lr, momentum=0.9),
    "heavy ball": lambda p, lr: HeavyBall(p, lr=lr, momentum=0.5),
    "adam": lambda p, lr: torch.optim.Adam(p, lr=lr),
}


def batch(k: int) -> tuple[Tensor, Tensor]:
    rows = slice(8 * k % 40, 8 * k % 40 + 8)
    return X[rows], Y[rows]


def train(name: str, lr: float, *, guarded: bool, steps: int = 30) -> Any:
    model = network()
    mg = MultiGradient(model, losses, Recursive([(X, Y)], 5))
    optimizer = OPTIMIZERS[name](model.parameters(), lr)
    guard = Safeguard(optimizer, mg) if guarded else None
    for k in range(steps):
        mg.backward(batch(k))
        optimizer.step()
    return model, mg, guard


@pytest.mark.parametrize("staged", [True, False])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_while_nothing_fires_nothing_changes_bit_for_bit(
    name: str, staged: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "STAGED_ENTRIES", 1 << 16 if staged else 0)
    plain, mg, _ = train(name, 1e-3, guarded=False)
    model, other, guard = train(name, 1e-3, guarded=True)
    assert (guard.alone, guard.shortened, guard.taken_back) == (0, 0, 0)
    assert guard.smoothness > 0
    assert torch.equal(flat(plain), flat(model))
    assert (mg.samples, mg.gradients) == (other.samples, other.gradients)


@pytest.mark.parametrize("staged", [True, False])
def test_after_a_step_too_long_for_it_the_recursion_rests_until_the_next_anchor(
    staged: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "STAGED_ENTRIES", 1 << 16 if staged else 0)
    model = network()
    mg = MultiGradient(model, losses, Recursive([(X, Y)], 12))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    guard = Safeguard(optimizer, mg)
    own, points = [], []
    for k in range(24):
        before, alone = mg.gradients, guard.alone
        guard.multigradient.backward(batch(k))
        points.append((mg.gradients - before) // 8)
        rows = torch.stack([torch.cat([part.flatten() for part in row.values()]) for row in mg.rows()])
        own.append(torch.allclose(rows, jacobian(model, losses, batch(k)), rtol=0, atol=1e-5))
        assert guard.alone - alone == own[-1]
        optimizer.param_groups[0]["lr"] = 1.0 if k == 3 else 1e-3
        guard.optimizer.step()
    # 40 samples at an anchor; recursion; too long a step after the fourth; now and at every fourth step both points
    assert points == [5, 2, 2, 2, 2, 1, 1, 1, 2, 1, 1, 1, 5] + [2] * 11
    assert own == [False] * 4 + [True] * 8 + [False] * 12


@pytest.mark.parametrize("uphill", [True, False])
def test_where_losses_rise_step_after_step_the_recursion_rests_until_the_next_anchor(uphill: bool) -> None:
    """Linear losses: the recursion keeps the anchor's gradient, whatever the batches say, and no step is too long."""
    model = nn.Linear(1, 1, bias=False).double()
    nn.init.constant_(model.weight, 0.0)
    ones = torch.ones(4, 1, dtype=torch.float64)
    mg = MultiGradient(model, lambda m, x: 10.0 + m(x).mean(0), Recursive([ones], 12))
    guard = Safeguard(torch.optim.SGD(model.parameters(), lr=0.01), mg)
    alone, places = [], []
    for _ in range(18):
        guard.multigradient.backward(-ones if uphill else ones)
        guard.optimizer.step()
        alone.append(guard.alone)
        places.append(round(100 * model.weight.item()))
    assert (guard.shortened, guard.taken_back) == (0, 0)
    if uphill:  # along the anchor until that is no chance; along the batches; from the next anchor on anew
        assert alone == [0] * 6 + [1, 2, 3, 4, 5, 6] + [6] * 6
        assert places == [-1, -2, -3, -4, -5, -6, -5, -4, -3, -2, -1, 0, -1, -2, -3, -4, -5, -6]
    else:
        assert alone == [0] * 18


def test_slow_divergence_is_seen() -> None:
    """On a quadratic steps of 2.1/L grow by a tenth each: no single one is a sharp rise."""
    for guarded in (False, True):
        model = nn.Linear(1, 1, bias=False).double()
        nn.init.constant_(model.weight, 1.0)
        data = torch.ones(4, 1, dtype=torch.float64)
        mg = MultiGradient(model, lambda m, x: (m(x) ** 2).mean(0), Recursive([data], 1000))
        optimizer = torch.optim.SGD(model.parameters(), lr=1.05)
        guard = Safeguard(optimizer, mg) if guarded else None
        for _ in range(100):
            mg.backward(data[:2])
            optimizer.step()
        if guard is None:
            assert abs(model.weight.item()) > 1e3
        else:
            assert abs(model.weight.item()) < 1.0
            assert guard.shortened > 0


@pytest.mark.parametrize("lr", [1e4, 1e30, 1e100])
@pytest.mark.parametrize("name", ["sgd", "heavy ball"])
def test_any_step_size_trains(name: str, lr: float) -> None:
    model, _, guard = train(name, lr, guarded=True, steps=120)
    guard.settle(batch(120))
    assert losses(model, (X, Y)).max() < losses(network(), (X, Y)).max()
    assert guard.taken_back > 0


@pytest.mark.parametrize("lr", [1e-3, 1e3])
def test_the_last_step_is_judged_too(lr: float) -> None:
    model, mg, guard = train("sgd", 1e-3, guarded=True, steps=12)
    guard.multigradient.backward(batch(12))
    start, counts = flat(model), (mg.t, mg.samples, mg.gradients)
    before = losses(model, batch(13)).detach()
    guard.optimizer.param_groups[0]["lr"] = lr
    guard.optimizer.step()
    stepped, grad = flat(model), [p.grad.clone() for p in model.parameters()]
    guard.settle(batch(13))
    if lr == 1e-3:
        assert torch.equal(flat(model), stepped)
        assert (mg.t, mg.samples, mg.gradients) == counts
        assert guard.taken_back == 0
    else:
        assert 0 <= (flat(model) - start).norm() < 0.1 * (stepped - start).norm()
        assert (losses(model, batch(13)) <= 1.6 * before + 0.1).all()
        # the batch of 8 at two points, for every time it was taken back
        assert (mg.t, mg.gradients) == (counts[0], counts[2] + 16 * guard.taken_back)
        assert guard.taken_back > 0
    assert all(torch.equal(p.grad, g) for p, g in zip(model.parameters(), grad, strict=True))


@pytest.mark.parametrize("staged", [True, False])
def test_after_settling_one_may_go_on(staged: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "STAGED_ENTRIES", 1 << 16 if staged else 0)
    runs = []
    for settles in (False, True):
        model, _, guard = train("sgd", 1e-3, guarded=True, steps=12)
        if settles:
            guard.settle(batch(12))
        for k in range(12, 20):
            guard.multigradient.backward(batch(k))
            guard.optimizer.step()
        runs.append(flat(model))
    assert torch.allclose(*runs, rtol=0, atol=1e-15)


@pytest.mark.parametrize("staged", [True, False])
def test_a_loss_far_above_its_mean_is_looked_into(staged: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the recursion rests only every look-th step compares two points; a spike on another one is seen too."""
    monkeypatch.setattr(store, "STAGED_ENTRIES", 1 << 16 if staged else 0)
    model = network()
    mg = MultiGradient(model, losses, Recursive([(X, Y)], 12))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    monkeypatch.setattr("stimulus_moo.safeguard.guard.LOOK_EVERY", 8)
    guard = Safeguard(optimizer, mg)
    for k in range(6):
        guard.multigradient.backward(batch(k))
        optimizer.param_groups[0]["lr"] = 1.0 if k == 1 else 1e-3
        guard.optimizer.step()
    assert guard.suspended > 0
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 3.0
    assert (losses(model, batch(6)) > 3 * torch.tensor(guard.rollback.level)).any()
    gradients = mg.gradients
    guard.multigradient.backward(batch(6))
    assert guard.taken_back > 0
    # one point, and then two for every time it was taken back and for the one that stayed
    assert mg.gradients == gradients + 8 + 16 * (guard.taken_back + 1)
    assert losses(model, batch(6)).max() < 3 * max(guard.rollback.level)


def test_settling_where_both_points_are_bad_changes_nothing() -> None:
    model, mg, guard = train("sgd", 1e-3, guarded=True, steps=7)
    stepped, gradients = flat(model), mg.gradients
    guard.settle((torch.full((8, 3), torch.nan, dtype=X.dtype), Y[:8]))
    assert torch.equal(flat(model), stepped)
    assert (guard.taken_back, mg.gradients) == (0, gradients)


def test_every_evaluation_is_counted() -> None:
    seen = []

    def counting(model: Any, b: Any) -> Any:
        seen.append(len(b[0]))
        return losses(model, b)

    model = network()
    mg = MultiGradient(model, counting, Recursive([(X, Y)], 5))
    guard = Safeguard(torch.optim.SGD(model.parameters(), lr=30.0), mg)
    for k in range(60):
        guard.multigradient.backward(batch(k))
        guard.optimizer.step()
    assert guard.taken_back > 0
    assert guard.alone > 0
    assert mg.gradients == sum(seen)


def cliff(model: Any, b: Tensor) -> Tensor:
    """Two valleys whose walls are steep on the far side."""
    x = model.weight[0]
    return (
        torch.stack([(x - 1).square() + torch.exp(6 * (x - 2)), (x - 1.2).square() + torch.exp(6 * (x - 2))]).mean(
            dim=1
        )
        + 0.0 * b.mean()
    )


def slope(start: float, lr: float, loss: Any = cliff) -> tuple[nn.Linear, MultiGradient, Safeguard]:
    model = nn.Linear(1, 1, bias=False).double()
    nn.init.constant_(model.weight, start)
    data = torch.ones(4, 1, dtype=torch.float64)
    mg = MultiGradient(model, loss, Recursive([data], 100))
    return model, mg, Safeguard(HeavyBall(model.parameters(), lr=lr, momentum=0.5), mg)


def test_a_step_that_made_a_loss_rise_sharply_is_taken_back(caplog: pytest.LogCaptureFixture) -> None:
    model, mg, guard = slope(-2.0, 0.9)
    data = torch.ones(2, 1, dtype=torch.float64)
    guard.multigradient.backward(data)
    guard.optimizer.step()
    jumped = model.weight.item()
    assert jumped > 2.5  # over the wall
    spent = mg.gradients
    with caplog.at_level(logging.INFO, "stimulus_moo"):
        guard.multigradient.backward(data)
    assert guard.taken_back >= 1
    assert "taken back" in caplog.text
    times = guard.taken_back
    assert model.weight.item() == pytest.approx(-2.0 + (jumped + 2.0) * 0.25 ** (times * (times + 1) / 2))
    assert mg.gradients == spent + 4 * (guard.taken_back + 1)  # what was evaluated in vain is counted
    assert guard.rollback.scale == 0.25 ** (times * (times + 1) / 2)
    assert not guard.optimizer.state  # momentum is dropped
    rate = guard.optimizer.param_groups[0]["lr"]
    for _ in range(100):
        guard.optimizer.step()
        guard.multigradient.backward(data)
    assert guard.optimizer.param_groups[0]["lr"] == rate  # schedules see their own
    assert guard.rollback.scale == 1.0
    assert abs(model.weight.item() - 1.1) < 0.2


def rooted(model: Any, b: Tensor) -> Tensor:
    x = model.weight[0]
    return torch.stack([2 - torch.sqrt(4 - (x - 1).square()), (x - 1.2).square()]).mean(dim=1) + 0.0 * b.mean()


def test_a_step_into_nan_is_taken_back() -> None:
    model, _, guard = slope(-0.9, 3.0, rooted)
    data = torch.ones(2, 1, dtype=torch.float64)
    for _ in range(60):
        guard.multigradient.backward(data)
        guard.optimizer.step()
    assert guard.taken_back > 0
    assert abs(model.weight.item() - 1.1) < 0.3


def test_where_taking_back_does_not_help_the_error_is_raised_and_nothing_is_lost() -> None:
    model, mg, guard = slope(0.5, 0.1)
    data = torch.ones(2, 1, dtype=torch.float64)
    for _ in range(3):
        guard.multigradient.backward(data)
        guard.optimizer.step()
    kept, state, counts = model.weight.item(), dict(guard.optimizer.state), (mg.t, mg.samples)
    with pytest.raises(NonFiniteError):
        guard.multigradient.backward(data * float("nan"))
    assert model.weight.item() == kept
    assert dict(guard.optimizer.state) == state
    assert guard.rollback.scale == 1.0
    assert (mg.t, mg.samples, guard.taken_back) == (*counts, 0)
    guard.multigradient.backward(data)


def test_one_point_has_nothing_to_compare() -> None:
    model = network()
    mg = MultiGradient(model, losses, MiniBatch())
    guard = Safeguard(torch.optim.SGD(model.parameters(), lr=0.1), mg)
    for k in range(5):
        guard.multigradient.backward(batch(k))
        guard.optimizer.step()
    assert (guard.smoothness, guard.turn, guard.alone, guard.shortened, guard.taken_back) == (None, None, 0, 0, 0)


def test_the_state_round_trips() -> None:
    _, _, guard = train("sgd", 3.0, guarded=True)
    model = network()
    mg = MultiGradient(model, losses, Recursive([(X, Y)], 5))
    fresh = Safeguard(torch.optim.SGD(model.parameters(), lr=3.0), mg)
    fresh.load_state_dict(guard.state_dict())
    assert fresh.state_dict() == guard.state_dict()
    with pytest.raises(StateMismatch, match="smoothness"):
        fresh.load_state_dict({**guard.state_dict(), "smoothness": "much"})


def test_it_attaches_itself_and_detaches() -> None:
    """After ``detach`` the loop is the plain one, and another guard can be attached."""
    plain, _, _ = train("heavy ball", 1e-3, guarded=False)
    model = network()
    mg = MultiGradient(model, losses, Recursive([(X, Y)], 5))
    optimizer = OPTIMIZERS["heavy ball"](model.parameters(), 1e-3)
    guard = Safeguard(optimizer, mg)
    with pytest.raises(InvalidOption, match="multigradient already has a Safeguard"):
        Safeguard(optimizer, mg)
    for k in range(30):
        if k == 10:
            guard.detach()
            guard.detach()  # idempotent
        if k == 20:
            guard = Safeguard(optimizer, mg)
        mg.backward(batch(k))
        optimizer.step()
    assert torch.equal(flat(plain), flat(model))
    assert guard.step_length.t == 10


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_learning_rates_are_the_schedulers_own_after_every_step(name: str) -> None:
    """Under a schedule, and after a step of the optimizer that raised."""
    model = network()
    mg = MultiGradient(model, losses, Recursive([(X, Y)], 5))
    optimizer = OPTIMIZERS[name](model.parameters(), 1e-3)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    guard = Safeguard(optimizer, mg)
    guard.step_length.factor = 0.5  # as after many turns
    moved = []
    for k in range(4):
        mg.backward(batch(k))
        before = flat(model)
        optimizer.step()
        moved.append(float((flat(model) - before).norm()))
        assert optimizer.param_groups[0]["lr"] == pytest.approx(1e-3 * 0.9**k)
        scheduler.step()
    assert min(moved) > 0
    mg.backward(batch(4))

    def fail(*_: Any) -> None:
        raise RuntimeError("mine")

    hook = optimizer.register_step_pre_hook(fail)
    with pytest.raises(RuntimeError, match="mine"):
        optimizer.step()
    hook.remove()
    mg.backward(batch(4))
    assert optimizer.param_groups[0]["lr"] == pytest.approx(1e-3 * 0.9**4)


def test_the_objects_are_checked() -> None:
    model = network()
    mg = MultiGradient(model, losses, MiniBatch())
    with pytest.raises(InvalidOption, match="optimizer must be"):
        Safeguard(model, mg)  # type: ignore[arg-type]
    with pytest.raises(InvalidOption, match="multigradient must be"):
        Safeguard(torch.optim.SGD(model.parameters(), lr=1.0), model)  # type: ignore[arg-type]


def test_after_detach_steps_are_not_observed_any_more() -> None:
    run = Run(METHODS["stimulus"])
    guard = Safeguard(run.optimizer, run.multigradient)
    run.run(2)
    assert run.multigradient.watched
    assert run.multigradient.observation is not None
    guard.detach()
    run.step()
    assert not run.multigradient.watched
    assert run.multigradient.observation is None
