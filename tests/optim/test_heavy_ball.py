"""Polyak's heavy ball as an optimizer."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from stimulus_moo import HeavyBall, InvalidOption
from tests.harness import round_trip


def gradients(count: int, seed: int = 0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(3, generator=generator, dtype=torch.float64) for _ in range(count)]


def parameter() -> nn.Parameter:
    return nn.Parameter(torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64))


def path(optimizer: Any, x: nn.Parameter, steps: list[Tensor | None], scheduler: Any = None) -> Tensor:
    found = []
    for gradient in steps:
        x.grad = gradient
        optimizer.step()
        if scheduler is not None:
            scheduler.step()
        found.append(x.detach().clone())
    return torch.stack(found)


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_the_rule_by_hand(momentum: float, decay: float) -> None:
    x = parameter()
    optimizer = HeavyBall([x], lr=0.1, momentum=momentum, weight_decay=decay)
    now, last = x.detach().clone(), x.detach().clone()
    for gradient, found in zip(gradients(10), path(optimizer, x, list(gradients(10))), strict=True):
        now, last = now - 0.1 * (gradient + decay * now) + momentum * (now - last), now
        torch.testing.assert_close(found, now, rtol=0, atol=1e-14)


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_it_is_sgd_with_momentum_while_the_rate_is_constant(decay: float) -> None:
    steps: list[Tensor | None] = list(gradients(12))
    steps[4] = steps[5] = None  # skipped by both
    x, y = parameter(), parameter()
    ours = path(HeavyBall([x], lr=0.1, momentum=0.7, weight_decay=decay), x, steps)
    theirs = path(torch.optim.SGD([y], lr=0.1, momentum=0.7, weight_decay=decay), y, steps)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-14)


def test_under_a_schedule_it_keeps_the_displacement_and_sgd_does_not() -> None:
    x, y = parameter(), parameter()
    ball, sgd = HeavyBall([x], lr=0.1, momentum=0.7), torch.optim.SGD([y], lr=0.1, momentum=0.7)
    halve = [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5) for optimizer in (ball, sgd)]
    ours = path(ball, x, list(gradients(6)), halve[0])
    theirs = path(sgd, y, list(gradients(6)), halve[1])
    now, last = parameter().detach(), parameter().detach()
    for t, gradient in enumerate(gradients(6)):
        now, last = now - 0.1 * 0.5**t * gradient + 0.7 * (now - last), now
        torch.testing.assert_close(ours[t], now, rtol=0, atol=1e-14)
    assert (ours[-1] - theirs[-1]).abs().max() > 0.01


def test_displacement_is_what_really_moved() -> None:
    x = parameter()
    optimizer = HeavyBall([x], lr=0.1, momentum=0.5)
    x.grad = torch.zeros(3, dtype=torch.float64)
    optimizer.step()
    x.data += 1.0  # by hand
    optimizer.step()
    torch.testing.assert_close(x.detach(), parameter().detach() + 1.5, rtol=0, atol=1e-15)


def test_groups_have_their_own_options() -> None:
    x, y = parameter(), parameter()
    optimizer = HeavyBall([{"params": [x], "lr": 1.0}, {"params": [y], "momentum": 0.0, "weight_decay": 0.5}], lr=0.1)
    alone = HeavyBall([first := parameter()], lr=1.0), HeavyBall([second := parameter()], 0.1, 0.0, weight_decay=0.5)
    for gradient in gradients(4):
        for p in (x, y, first, second):
            p.grad = gradient
        optimizer.step()
        for other in alone:
            other.step()
    assert torch.equal(x, first)
    assert torch.equal(y, second)


def test_parameters_of_several_dtypes_and_a_rate_that_is_a_tensor() -> None:
    kinds = [torch.float64, torch.float32, torch.bfloat16]
    xs = [nn.Parameter(torch.ones(2, dtype=kind)) for kind in kinds]
    optimizer = HeavyBall(xs, lr=torch.tensor(0.5), momentum=0.5)  # type: ignore[arg-type]
    for _ in range(2):
        for x in xs:
            x.grad = torch.ones_like(x)
        optimizer.step()
    assert [x.tolist() for x in xs] == [[-0.25, -0.25]] * 3


def test_a_closure_is_evaluated_with_gradients() -> None:
    x = parameter()
    optimizer = HeavyBall([x], lr=0.1)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = x.square().sum()
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    assert optimizer.step(closure).item() == pytest.approx(5.25)
    torch.testing.assert_close(x.detach(), 0.8 * parameter().detach(), rtol=0, atol=1e-15)


def test_parameters_without_a_gradient_stay() -> None:
    x, y = parameter(), parameter()
    optimizer = HeavyBall([x, y], lr=0.1)
    x.grad = torch.ones(3, dtype=torch.float64)
    optimizer.step()
    assert torch.equal(y, parameter())
    x.grad = None
    before = x.detach().clone()
    optimizer.step()
    assert torch.equal(x, before)


@pytest.mark.parametrize("stop", [0, 1, 5])
def test_resume_at_any_step(stop: int, tmp_path: Any) -> None:
    steps: list[Tensor | None] = list(gradients(10))
    x = parameter()
    whole = path(HeavyBall([x], lr=0.1, momentum=0.7), x, steps)
    y = parameter()
    first = HeavyBall([y], lr=0.1, momentum=0.7)
    if stop:
        path(first, y, steps[:stop])
    state = round_trip(first.state_dict(), tmp_path)
    z = nn.Parameter(y.detach().clone())
    second = HeavyBall([z], lr=99.0, momentum=0.1)
    second.load_state_dict(state)
    assert torch.equal(path(second, z, steps[stop:]), whole[stop:])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lr": -0.1}, "lr must be a finite number of at least 0, found -0.1"),
        ({"lr": "fast"}, "lr must be a finite number, found 'fast'"),
        ({"lr": 0.1, "momentum": 1.0}, r"momentum must lie in \[0, 1\), found 1.0"),
        ({"lr": 0.1, "momentum": -0.1}, "momentum must lie in .*, found -0.1"),
        ({"lr": 0.1, "weight_decay": -1.0}, "weight_decay must be a finite number of at least 0, found -1.0"),
    ],
)
def test_bad_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidOption, match=message):
        HeavyBall([parameter()], **options)
    with pytest.raises(InvalidOption, match=message):
        HeavyBall([{"params": [parameter()], **options}], lr=0.1)
