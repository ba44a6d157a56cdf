"""CR-MOGM's running average, by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from stimulus_moo import Fixed, InvalidOption, InvalidWeights, MinNorm, ProjectedDescent, Smoothed, StateMismatch
from tests.harness import round_trip, same


def gramians(count: int, size: int = 3) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    rows = [torch.randn(size, 5, generator=generator, dtype=torch.float64) for _ in range(count)]
    return [u @ u.T for u in rows]


@pytest.mark.parametrize("alpha", [0.0, 0.3, 1.0, lambda t: 1 - 1 / (t + 1)])
def test_the_average_by_hand(alpha: Any) -> None:
    smoothed = Smoothed(MinNorm(), alpha)
    expected = None
    for t, gramian in enumerate(gramians(6)):
        new = MinNorm()(gramian)
        a = alpha(t) if callable(alpha) else alpha
        expected = new if expected is None else a * expected + (1 - a) * new
        torch.testing.assert_close(smoothed(gramian), expected, rtol=0, atol=1e-15)


def test_any_callable_can_be_smoothed() -> None:
    smoothed = Smoothed(lambda gramian: gramian.diagonal() / gramian.trace(), alpha=0.5)
    first = torch.diag(torch.tensor([1.0, 3.0], dtype=torch.float64))
    assert smoothed(first).tolist() == [0.25, 0.75]
    assert smoothed(first.flip(0, 1)).tolist() == [0.5, 0.5]


def test_what_the_inner_weighting_returns_is_checked() -> None:
    with pytest.raises(InvalidWeights, match=r"return 3 weights, found shape \[3, 3\]"):
        Smoothed(lambda gramian: gramian, alpha=0.5)(gramians(1)[0])


def test_state_covers_the_inner_weighting(tmp_path: Any) -> None:
    def build() -> Smoothed:
        return Smoothed(Smoothed(ProjectedDescent(gamma=0.1), alpha=0.5), alpha=lambda t: t / (t + 1))

    first, second = build(), build()
    for gramian in gramians(4):
        first(gramian)
    state = first.state_dict()
    second.load_state_dict(round_trip(state, tmp_path))
    for gramian in gramians(7)[4:]:
        assert torch.equal(first(gramian), second(gramian))
    second.load_state_dict(state)
    assert same(second.state_dict(), state)
    second.load_state_dict(build().state_dict())
    assert second.previous is None


def test_foreign_states_are_refused() -> None:
    smoothed = Smoothed(MinNorm(), alpha=0.5)
    smoothed(gramians(1)[0])
    before = smoothed.state_dict()
    other = Smoothed(MinNorm(), alpha=0.5)
    other(gramians(1, size=2)[0])
    with pytest.raises(StateMismatch, match=r"Smoothed.previous must be a tensor of shape \[3\]"):
        smoothed.load_state_dict(other.state_dict())
    with pytest.raises(StateMismatch, match=r"Smoothed.weighting is of kind 'Fixed', this object is a MinNorm"):
        smoothed.load_state_dict(before | {"weighting": Fixed().state_dict()})
    with pytest.raises(StateMismatch, match=r"Smoothed.previous must be a Tensor or None, found 'x'"):
        Smoothed(MinNorm(), alpha=0.5).load_state_dict(before | {"previous": "x"})
    assert same(smoothed.state_dict(), before)


@pytest.mark.parametrize("alpha", [-0.1, 1.1, None, "0.5"])
def test_bad_alpha(alpha: Any) -> None:
    with pytest.raises(InvalidOption, match="alpha must"):
        Smoothed(MinNorm(), alpha)
    with pytest.raises(InvalidOption, match="weighting must be"):
        Smoothed(3, 0.5)  # type: ignore[arg-type]
