"""Weights from an average of Gramians."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from stimulus_moo import Averaged, InvalidOption, MinNorm, MultiGradient, ProjectedDescent, StateMismatch, Storm
from tests.database import Memory
from tests.harness import cut, data, same, train, two_heads, two_losses

BATCHES = cut(data(24), 6)


def gramians(count: int = 5, objectives: int = 3) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(count, objectives, 4, generator=generator, dtype=torch.float64)
    return [u @ u.T for u in rows]


@pytest.mark.parametrize("memory", [0.0, 0.3, 0.9, 0.999])
def test_the_weighting_gets_the_exponential_average(memory: float) -> None:
    seen: list[Tensor] = []
    averaged = Averaged(lambda gramian: (seen.append(gramian.clone()), MinNorm()(gramian))[1], memory)
    average = None
    for gramian in gramians():
        kept = gramian.clone()
        average = gramian if average is None else memory * average + (1 - memory) * gramian
        weights = averaged(gramian)
        torch.testing.assert_close(seen[-1], average, rtol=1e-14, atol=1e-14)
        torch.testing.assert_close(weights, MinNorm()(average), rtol=0, atol=1e-12)
        assert torch.equal(gramian, kept)  # what it is given is not changed


def test_without_memory_it_is_the_weighting_itself() -> None:
    averaged = Averaged(MinNorm(), 0.0)
    for gramian in gramians():
        torch.testing.assert_close(averaged(gramian), MinNorm()(gramian), rtol=0, atol=1e-13)


def test_a_weighting_that_changes_its_argument_does_no_harm() -> None:
    def rude(gramian: Tensor) -> Tensor:
        return gramian.zero_().diagonal() + 1.0

    averaged = Averaged(rude, 0.5)
    first, second = gramians(2)
    averaged(first.clone())
    averaged(second.clone())
    torch.testing.assert_close(averaged.gramian, 0.5 * first + 0.5 * second, rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("inner", [lambda: MinNorm(), lambda: ProjectedDescent(0.1), Memory])
def test_the_state_goes_on_in_a_fresh_object(inner: Any) -> None:
    straight, stopped = Averaged(inner(), 0.7), Averaged(inner(), 0.7)
    for i, gramian in enumerate(gramians()):
        fresh = Averaged(inner(), 0.7)
        state = stopped.state_dict()
        fresh.load_state_dict(state)
        assert torch.equal(fresh(gramian), straight(gramian))
        assert i == 0 or not same(state, fresh.state_dict())  # a state is a copy
        stopped = fresh
    assert same(stopped.state_dict(), straight.state_dict())


@pytest.mark.parametrize("found", [torch.eye(2), torch.ones(3, dtype=torch.float64), torch.ones(2, 3).double(), 1.0])
def test_a_gramian_of_another_form_is_refused(found: Any) -> None:
    averaged = Averaged(MinNorm())
    state = {**averaged.state_dict(), "gramian": found}
    with pytest.raises(StateMismatch, match="gramian"):
        averaged.load_state_dict(state)


def test_a_gramian_of_another_number_of_objectives_is_refused() -> None:
    mg = MultiGradient(two_heads(), two_losses, Storm(0.3), Averaged(MinNorm()), reweigh=3)
    train(mg, BATCHES[:2])
    state = mg.state_dict()
    state["weighting"]["gramian"] = torch.eye(3, dtype=torch.float64)
    fresh = MultiGradient(two_heads(), two_losses, Storm(0.3), Averaged(MinNorm()), reweigh=3)
    for one in (mg, fresh):
        with pytest.raises(StateMismatch, match=r"weighting\.gramian must .* shape \[2, 2\]"):
            one.load_state_dict(state)


@pytest.mark.parametrize("memory", [-0.1, 1.0, 1.5, math.nan, True, "much", None])
def test_the_memory_is_below_one(memory: Any) -> None:
    with pytest.raises(InvalidOption, match=r"memory must .*found") as caught:
        Averaged(MinNorm(), memory)
    assert str(caught.value).endswith(repr(memory))


def test_what_is_no_weighting_is_refused() -> None:
    with pytest.raises(InvalidOption, match="weighting must be"):
        Averaged(3)  # type: ignore[arg-type]


def test_any_callable_can_be_averaged() -> None:
    """A module as TorchJD's weightings are, in float32 and with a state of its own."""

    class Foreign(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.calls = 0

        def forward(self, gramian: Tensor) -> Tensor:
            self.calls += 1
            return torch.softmax(-gramian.diagonal().float(), 0)

    averaged = Averaged(Foreign(), 0.5)
    assert not averaged.deterministic  # several processes use the weights of the first
    assert Averaged(MinNorm()).deterministic
    first, second = gramians(2)
    averaged(first)
    found = averaged(second)
    expected = torch.softmax(-(0.5 * first + 0.5 * second).diagonal().float(), 0)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=0)
    fresh = Averaged(Foreign(), 0.5)
    fresh.load_state_dict(averaged.state_dict())
    assert fresh.weighting.function.calls == 2  # type: ignore[attr-defined]


def test_averaged_weights_are_less_noisy_than_their_batches() -> None:
    generator = torch.Generator().manual_seed(0)
    mean = torch.randn(3, 40, generator=generator, dtype=torch.float64)
    exact = MinNorm()(mean @ mean.T)
    averaged, errors = Averaged(MinNorm(), 0.9), []
    for _ in range(60):
        noisy = mean + 0.5 * torch.randn(3, 40, generator=generator, dtype=torch.float64)
        gramian = noisy @ noisy.T
        errors.append([float((weights - exact).norm()) for weights in (averaged(gramian), MinNorm()(gramian))])
    late = torch.tensor(errors[30:]).mean(0)
    assert late[0] < 0.5 * late[1]  # an average over about 19 solves has a standard error of less than a quarter


def test_an_objective_that_was_absent_at_first_starts_with_its_first_row() -> None:
    averaged, late = Averaged(MinNorm(), 0.9), gramians(2)[1]
    averaged.among(torch.diag(torch.tensor([2.0, 0.0, 3.0], dtype=torch.float64)), [0, 2])
    averaged(late)
    assert averaged.gramian is not None
    torch.testing.assert_close(averaged.gramian[1], late[1])  # its products are not mixed with zeros
    assert averaged.gramian[0, 0] == pytest.approx(0.9 * 2.0 + 0.1 * float(late[0, 0]))
