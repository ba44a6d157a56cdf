"""A step size without a number: the distance gone over the gradients seen, from a small first step on."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from stimulus_moo import (
    DoG,
    HeavyBall,
    InvalidOption,
    MiniBatch,
    ModelChanged,
    MultiGradient,
    Recursive,
    Safeguard,
    StateMismatch,
    StimulusWarning,
)
from tests._engine.test_observation import X, Y, flat, losses, network


def bowl(model: Any, b: Tensor) -> Tensor:
    """Two quadratics with L = 8 in one direction and 2 in the other, the same for every sample."""
    x = model.weight[0]
    stretch = torch.tensor([4.0, 1.0], dtype=torch.float64)
    return torch.stack([(stretch * (x - c).square()).sum() for c in (1.0, 1.0)]) + 0.0 * b.mean()


def descend(steps: int, scale: float = 1.0) -> tuple[nn.Linear, DoG]:
    model = nn.Linear(2, 1, bias=False).double()
    nn.init.constant_(model.weight, 3.0)
    data = torch.ones(4, 1, dtype=torch.float64)
    mg = MultiGradient(model, lambda m, b: scale * bowl(m, b), Recursive([data], 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=123.0)
    schedule = DoG(optimizer, mg)
    assert optimizer.param_groups[0]["lr"] == 0.0  # nobody has chosen a rate yet
    assert schedule.lr is None
    for _ in range(steps):
        mg.backward(data[:2])
        schedule.step()
        optimizer.step()
    return model, schedule


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9])
def test_every_rate_is_the_distance_over_the_gradients(momentum: float) -> None:
    model = network()
    mg = MultiGradient(model, losses, Recursive([(X, Y)], 5))
    optimizer = HeavyBall(model.parameters(), lr=1.0, momentum=momentum)
    schedule = DoG(optimizer, mg)
    start, reached, total = flat(model), 0.001 * (1 + flat(model).norm().item()), 0.0
    for k in range(30):
        step = mg.backward((X[8 * k % 40 : 8 * k % 40 + 8], Y[8 * k % 40 : 8 * k % 40 + 8]))
        reached = max(reached, (flat(model) - start).norm().item())
        total += step.sq_norm.item()
        schedule.step()
        assert schedule.lr == pytest.approx((1 - momentum) * reached / math.sqrt(total))
        optimizer.step()


@pytest.mark.parametrize(("done", "left"), [(0.0, 1.0), (0.8, 1.0), (0.9, 0.5), (0.99, 0.05), (1.0, 0.0)])
def test_in_the_last_fifth_the_rate_falls_to_nothing(done: float, left: float) -> None:
    model, schedule = descend(20)
    schedule.step(done)
    assert schedule.lr == pytest.approx(left * schedule.max_distance / math.sqrt(schedule.sum_sq_norm))
    fresh = DoG(torch.optim.SGD(model.parameters(), lr=5.0), schedule.multigradient)
    fresh.load_state_dict(schedule.state_dict())
    assert fresh.lr == schedule.lr


@pytest.mark.parametrize("done", [-0.1, 1.1, math.nan, "half"])
def test_what_is_done_is_a_share(done: Any) -> None:
    _, schedule = descend(20)
    before, lr = str(schedule.state_dict()), schedule.lr
    with pytest.raises(InvalidOption, match="done must"):
        schedule.step(done)
    assert (str(schedule.state_dict()), schedule.lr) == (before, lr)


def test_the_first_step_goes_as_far_as_it_may() -> None:
    model, _ = descend(1)
    assert (model.weight - 3.0).norm().item() == pytest.approx(1e-3 * (1 + math.sqrt(18.0)))


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_the_scale_of_the_losses_does_not_matter(scale: float) -> None:
    model, schedule = descend(200, scale)
    assert 0.25 / 8 < scale * schedule.lr < 4.0 / 2
    assert (model.weight - 1.0).abs().max() < 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("estimator", ["recursive", "mini-batch"])
def test_a_model_trains_without_a_number(estimator: str) -> None:
    model = network()
    mg = MultiGradient(model, losses, Recursive([(X, Y)], 5) if estimator == "recursive" else MiniBatch())
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    schedule, guard = DoG(optimizer, mg), Safeguard(optimizer, mg)
    before = losses(model, (X, Y)).max()
    for k in range(200):
        guard.multigradient.backward((X[8 * k % 40 : 8 * k % 40 + 8], Y[8 * k % 40 : 8 * k % 40 + 8]))
        schedule.step()
        guard.optimizer.step()
    assert losses(model, (X, Y)).max() < 0.6 * before


def test_groups_keep_their_ratio() -> None:
    model = network()
    mg = MultiGradient(model, losses, Recursive([(X, Y)], 5))
    first, second = list(model[0].parameters()), list(model[2].parameters())
    optimizer = torch.optim.SGD([{"params": first}, {"params": second, "lr": 0.5}], lr=1.0)
    schedule = DoG(optimizer, mg)
    for _ in range(4):
        mg.backward((X, Y))
        schedule.step()
        optimizer.step()
    rates = [group["lr"] for group in optimizer.param_groups]
    assert rates[0] == schedule.lr > 0
    assert rates[1] == 0.5 * rates[0]


def test_the_state_round_trips_and_sets_the_rate() -> None:
    _, schedule = descend(20)
    model = nn.Linear(2, 1, bias=False).double()
    mg = MultiGradient(model, bowl, Recursive([torch.ones(4, 1)], 10))
    fresh = DoG(torch.optim.SGD(model.parameters(), lr=5.0), mg)
    fresh.load_state_dict(schedule.state_dict())
    assert str(fresh.state_dict()) == str(schedule.state_dict())
    assert fresh.optimizer.param_groups[0]["lr"] == schedule.lr
    for origin in ([torch.zeros(3)], [], [1.0]):
        with pytest.raises(StateMismatch, match="origin must have the shapes"):
            fresh.load_state_dict({**schedule.state_dict(), "origin": origin})
    assert fresh.lr == schedule.lr


@pytest.mark.parametrize("name", ["Adadelta", "Rprop", "Adafactor"])
def test_optimizers_whose_metric_is_not_known_are_refused(name: str) -> None:
    model = network()
    mg = MultiGradient(model, losses, MiniBatch())
    with pytest.raises(InvalidOption, match=f"{name} divides the gradient by something else"):
        DoG(getattr(torch.optim, name)(model.parameters(), lr=1.0), mg)


def test_the_ratios_of_groups_come_with_the_state_whatever_is_loaded_first() -> None:
    def make(saved: Any = None) -> Any:
        model = network()
        mg = MultiGradient(model, losses, MiniBatch())
        groups = [{"params": model[0].parameters()}, {"params": model[2].parameters(), "momentum": 0.0}]
        optimizer = torch.optim.SGD(groups, lr=1.0, momentum=0.9)
        if saved is not None:
            optimizer.load_state_dict(saved)
        return mg, optimizer, DoG(optimizer, mg)

    mg, optimizer, schedule = make()
    mg.backward((X, Y))
    schedule.step()
    optimizer.step()
    other, resumed, again = make(optimizer.state_dict())
    other.load_state_dict(mg.state_dict())
    again.load_state_dict(schedule.state_dict())
    assert [g["lr"] for g in resumed.param_groups] == [g["lr"] for g in optimizer.param_groups]


def test_a_gradient_counts_once() -> None:
    """A step that is skipped leaves the gradient of the one before."""
    model = network()
    mg = MultiGradient(model, losses, MiniBatch(), on_nonfinite="skip")
    schedule = DoG(torch.optim.SGD(model.parameters(), lr=1.0), mg)
    mg.backward((X, Y))
    schedule.step()
    found = schedule.sum_sq_norm
    assert mg.backward((X * torch.nan, Y)).skipped
    schedule.step()
    assert schedule.sum_sq_norm == found > 0


def test_another_schedule_beside_it_is_noticed() -> None:
    model = network()
    mg = MultiGradient(model, losses, MiniBatch())
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    schedule = DoG(optimizer, mg)
    other = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    mg.backward((X, Y))
    schedule.step()
    optimizer.step()
    other.step()
    mg.backward((X, Y))
    with pytest.warns(StimulusWarning, match="another schedule changes it too"):
        schedule.step()


def test_a_model_that_has_changed_needs_a_new_schedule() -> None:
    model = network()
    mg = MultiGradient(model, losses, MiniBatch())
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    schedule = DoG(optimizer, mg)
    mg.backward((X, Y))
    schedule.step()
    model[0].requires_grad_(False)
    mg.reset()
    mg.backward((X, Y))
    with pytest.raises(ModelChanged, match="build a new DoG"):
        schedule.step()
    optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(2))], "lr": 0.0})
    with pytest.raises(ModelChanged, match="2 parameter groups, DoG knows 1"):
        schedule._set()


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.AdamW, torch.optim.NAdam, torch.optim.RMSprop])
def test_in_the_metric_the_rate_is_the_distance_over_the_gradients(kind: Any) -> None:
    """A literal twin in numpy-like steps: D is what the optimizer divides by at this very step."""
    torch.manual_seed(0)
    model = nn.Linear(3, 2).double()
    x, y = torch.randn(32, 3, dtype=torch.float64), torch.randn(32, 2, dtype=torch.float64)
    mg = MultiGradient(model, lambda m, b: (m(b[0]) - b[1]).square().mean(0), MiniBatch())
    optimizer = kind(model.parameters(), lr=1.0, weight_decay=0.0)
    schedule = DoG(optimizer, mg)
    values = [p.detach().clone() for p in model.parameters()]
    beta = optimizer.param_groups[0].get("alpha", optimizer.param_groups[0].get("betas", (0, 0.999))[1])
    corrects = kind is not torch.optim.RMSprop
    moment, total, distance, reach = [torch.zeros_like(v) for v in values], 0.0, 0.0, 1.0
    for t in range(30):  # until the limit holds
        mg.backward((x, y))
        schedule.step()
        gradients = [p.grad for p in model.parameters()]
        moment = [beta * v + (1 - beta) * g**2 for v, g in zip(moment, gradients, strict=True)]
        scale = [(v / (1 - beta ** (t + 1) if corrects else 1.0)).sqrt() + 1e-8 for v in moment]
        if t == 0:
            distance = 1e-3 * float(sum(((v**2 + 1e-3) * d).sum() for v, d in zip(values, scale, strict=True))) ** 0.5
        moved = sum(
            ((p.detach() - v) ** 2 * d).sum() for p, v, d in zip(model.parameters(), values, scale, strict=True)
        )
        distance = max(distance, float(moved) ** 0.5)
        total += float(sum((g**2 / d).sum() for g, d in zip(gradients, scale, strict=True)))
        reach = max(reach, (float(moved) / float(sum(d.sum() for d in scale))) ** 0.5)
        rate = min(1.4 * distance / total**0.5, 0.01 * reach)
        assert optimizer.param_groups[0]["lr"] == pytest.approx(rate, rel=1e-9)
        optimizer.step()
    assert rate == 0.01


def test_the_limit_grows_with_the_distance_covered() -> None:
    """An entry that has to go far gets there, whatever its unit."""
    model = nn.Linear(1, 1, bias=False).double()
    mg = MultiGradient(model, lambda m, x: (m(x) - 1e4).square().mean(0), MiniBatch())
    optimizer = torch.optim.Adam(model.parameters(), lr=1.0, betas=(0.9, 0.95))
    schedule = DoG(optimizer, mg)
    for _ in range(2500):
        mg.backward(torch.ones(1, 1, dtype=torch.float64))
        schedule.step()
        optimizer.step()
    assert abs(model.weight.item() - 1e4) < 1e3


@pytest.mark.parametrize(("lr", "limited"), [(0.3, True), (1e-5, False)])
def test_a_given_rate_is_used_up_to_twice_the_rate_found(lr: float, limited: bool) -> None:
    model = network()
    mg = MultiGradient(model, losses, MiniBatch())
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    schedule, own = DoG(optimizer, mg, lr=lr), DoG(torch.optim.Adam(model.parameters(), lr=1.0), mg)
    for k in range(40):
        mg.backward((X, Y))
        schedule.step(k / 40)  # it does not decay
        optimizer.step()
    own.load_state_dict({**schedule.state_dict(), "decay": 1.0})
    assert own.lr is not None
    assert schedule.lr == (pytest.approx(2 * own.lr) if limited else lr)


def test_a_given_rate_must_be_positive() -> None:
    model = network()
    mg = MultiGradient(model, losses, MiniBatch())
    with pytest.raises(InvalidOption, match="lr must be a finite number above 0, found 0"):
        DoG(torch.optim.Adam(model.parameters()), mg, lr=0.0)


def test_in_the_metric_the_rate_does_not_depend_on_the_scale_of_the_losses() -> None:
    def rates(scale: float) -> list[float]:
        torch.manual_seed(0)
        model = nn.Linear(3, 2).double()
        x, y = torch.randn(32, 3, dtype=torch.float64), torch.randn(32, 2, dtype=torch.float64)
        mg = MultiGradient(model, lambda m, b: scale * (m(b[0]) - b[1]).square().mean(0), MiniBatch())
        optimizer = torch.optim.Adam(model.parameters(), lr=1.0, eps=0.0)
        schedule, found = DoG(optimizer, mg), []
        for _ in range(60):
            mg.backward((x, y))
            schedule.step()
            optimizer.step()
            found.append(optimizer.param_groups[0]["lr"])
        return found

    assert rates(1e-3) == pytest.approx(rates(1.0), rel=1e-6)


def test_in_the_metric_the_rate_falls_over_the_last_half() -> None:
    model = network()
    mg = MultiGradient(model, losses, MiniBatch())
    schedule = DoG(torch.optim.Adam(model.parameters(), lr=1.0), mg)
    for done, share in ((0.5, 1.0), (0.75, 0.5), (1.0, 0.0)):
        schedule.step(done)
        assert schedule.decay == pytest.approx(share)
