"""Any callable as a weighting, what it may return, and the state it carries."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from stimulus_moo import InvalidOption, InvalidWeights, MinNorm, StateMismatch
from stimulus_moo.weightings.base import Adapter, as_weighting, checked
from tests.harness import round_trip, same

GRAMIAN = torch.tensor([[1.0, 0.0], [0.0, 3.0]], dtype=torch.float64)


class Counting:
    """A plain object with state of every plain type and something that is not."""

    def __init__(self) -> None:
        self.calls = 0
        self.last: Tensor | None = None
        self.seen: list[float] = []
        self.names = {"a": (1, torch.float32)}
        self.solver = object()

    def __call__(self, gramian: Tensor) -> Tensor:
        self.calls += 1
        self.last = gramian.diagonal() * self.calls
        self.seen.append(float(gramian[0, 0]))
        return self.last / self.last.sum()


class Nested(nn.Module):
    """A module with a buffer that is replaced, one that is written, and a stateful child."""

    def __init__(self, child: nn.Module | None = None) -> None:
        super().__init__()
        self.register_buffer("late", None)
        self.register_buffer("phi", torch.zeros(2, dtype=torch.float64))
        self.child = nn.Identity() if child is None else child
        self.beta = 0.5

    def forward(self, gramian: Tensor) -> Tensor:
        weights = self.child(gramian)
        weights = weights.diagonal() if weights.dim() == 2 else weights
        self.phi += weights
        self.late = self.phi * self.beta
        return self.phi / self.phi.sum()


def test_a_weighting_stays_what_it_is_and_a_function_is_wrapped() -> None:
    weighting = MinNorm()
    assert as_weighting(weighting) is weighting
    assert as_weighting(lambda g: g[0])(GRAMIAN).tolist() == [1.0, 0.0]


@pytest.mark.parametrize("weighting", [3, "min-norm", None, [0.5, 0.5]])
def test_what_cannot_be_called_is_refused(weighting: Any) -> None:
    with pytest.raises(InvalidOption, match="weighting must be a Weighting or a function"):
        as_weighting(weighting)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (None, "a tensor of 2 weights, found None"),
        ([0.5, 0.5], r"a tensor of 2 weights, found \[0.5, 0.5\]"),
        (np.array([0.5, 0.5]), "a tensor of 2 weights, found array"),
        (torch.ones(3), r"return 2 weights, found shape \[3\]"),
        (torch.ones(2, 1), r"return 2 weights, found shape \[2, 1\]"),
        (torch.tensor(1.0), r"return 2 weights, found shape \[\]"),
        (torch.tensor([0.5, torch.nan]), r"finite weights, found \[0.5, nan\]"),
        (torch.tensor([torch.inf, 0.0]), r"finite weights, found \[inf, 0.0\]"),
    ],
)
def test_weights_that_are_none(weights: Any, message: str) -> None:
    with pytest.raises(InvalidWeights, match=message):
        checked(weights, 2)


def test_weights_of_other_types_are_taken_as_float64() -> None:
    for weights in (
        torch.tensor([1, 2]),
        torch.tensor([1.0, 2.0], requires_grad=True),
        torch.tensor([1.0, 2.0]).half(),
    ):
        found = checked(weights, 2)
        assert (found.dtype, found.requires_grad, found.tolist()) == (torch.float64, False, [1.0, 2.0])


@pytest.mark.parametrize("build", [Counting, Nested, lambda: Nested(Nested())])
def test_state_of_any_callable_survives_into_a_fresh_one(build: Any, tmp_path: Any) -> None:
    first = Adapter(build())
    for k in range(3):
        first(GRAMIAN * (k + 1))
    second = Adapter(build())
    second.load_state_dict(round_trip(first.state_dict(), tmp_path))
    assert same(first.state_dict(), second.state_dict())
    for k in range(3):
        assert torch.equal(first(GRAMIAN + k), second(GRAMIAN + k))


@pytest.mark.parametrize("build", [Counting, Nested, lambda: Nested(Nested())])
def test_state_is_a_copy_and_can_be_rolled_back(build: Any) -> None:
    weighting = Adapter(build())
    weighting(GRAMIAN)
    before = weighting.state_dict()
    expected = weighting(GRAMIAN * 2).clone()
    weighting(GRAMIAN * 3)
    weighting.load_state_dict(before)
    assert same(weighting.state_dict(), before)
    assert torch.equal(weighting(GRAMIAN * 2), expected)


@pytest.mark.parametrize(
    ("source", "target"),
    [(Counting(), Nested()), (Nested(Nested()), Nested()), (Nested(nn.ReLU()), Nested(nn.Identity()))],
)
def test_state_of_another_callable_is_refused(source: Any, target: Any) -> None:
    weighting = Adapter(target)
    before = weighting.state_dict()
    with pytest.raises(StateMismatch, match=r"is of kind 'Adapter\(.*this object is a Adapter\(Nested"):
        weighting.load_state_dict(Adapter(source).state_dict())
    assert same(weighting.state_dict(), before)
