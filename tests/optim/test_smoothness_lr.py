"""A step size without a number: it starts small, finds 1/L, and follows what the losses say."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from stimulus_moo import InvalidOption, MiniBatch, MultiGradient, Recursive, SmoothnessLR
from tests.test_probe import X, Y, losses, network


def bowl(model: Any, b: Tensor) -> Tensor:
    """Two quadratics with L = 8 in one direction and 2 in the other, the same for every sample."""
    x = model.weight[0]
    stretch = torch.tensor([4.0, 1.0], dtype=torch.float64)
    return torch.stack([(stretch * (x - c).square()).sum() for c in (1.0, 1.0)]) + 0.0 * b.mean()


def descend(steps: int) -> tuple[nn.Linear, SmoothnessLR]:
    model = nn.Linear(2, 1, bias=False).double()
    nn.init.constant_(model.weight, 3.0)
    data = torch.ones(4, 1, dtype=torch.float64)
    mg = MultiGradient(model, bowl, Recursive([data], 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=123.0)
    schedule = SmoothnessLR(optimizer, mg)
    assert optimizer.param_groups[0]["lr"] == 0.0  # nobody has chosen a rate yet
    for _ in range(steps):
        mg.backward(data[:2])
        schedule.step()
        optimizer.step()
    return model, schedule


def test_the_first_step_is_small_and_the_rate_grows_at_most_by_the_factor() -> None:
    _, first = descend(1)
    _, third = descend(3)
    assert first.lr is not None
    assert third.lr is not None
    assert third.lr <= first.lr * 1.2**2 * (1 + 1e-12)


def test_the_rate_settles_near_one_over_l() -> None:
    model, schedule = descend(200)
    assert 0.5 / 8 < schedule.lr < 4.0 / 2
    assert (model.weight - 1.0).abs().max() < 1e-3


def test_a_model_trains_without_a_number() -> None:
    model = network()
    mg = MultiGradient(model, losses, Recursive([(X, Y)], 5))
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    schedule = SmoothnessLR(optimizer, mg)
    before = losses(model, (X, Y)).max()
    for k in range(200):
        mg.backward((X[8 * k % 40 : 8 * k % 40 + 8], Y[8 * k % 40 : 8 * k % 40 + 8]))
        schedule.step()
        optimizer.step()
    assert losses(model, (X, Y)).max() < 0.6 * before


def test_groups_keep_their_ratio() -> None:
    model = network()
    mg = MultiGradient(model, losses, Recursive([(X, Y)], 5))
    first, second = list(model[0].parameters()), list(model[2].parameters())
    optimizer = torch.optim.SGD([{"params": first}, {"params": second, "lr": 0.5}], lr=1.0)
    schedule = SmoothnessLR(optimizer, mg)
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
    fresh = SmoothnessLR(torch.optim.SGD(model.parameters(), lr=5.0), mg)
    fresh.load_state_dict(schedule.state_dict())
    assert fresh.state_dict() == schedule.state_dict()
    assert fresh.optimizer.param_groups[0]["lr"] == schedule.lr


def test_one_point_is_refused() -> None:
    model = network()
    mg = MultiGradient(model, losses, MiniBatch())
    with pytest.raises(InvalidOption, match="MiniBatch evaluates one"):
        SmoothnessLR(torch.optim.SGD(model.parameters(), lr=1.0), mg)
