"""Scalarisation."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from stimulus_moo import Fixed, InvalidOption, MiniBatch, MultiGradient
from tests.harness import data, direction, jacobian, two_heads, two_losses


def test_direction_is_the_gradient_of_the_weighted_sum() -> None:
    model, batch = two_heads(), data()
    rows = jacobian(model, two_losses, batch)
    MultiGradient(model, two_losses, MiniBatch(), Fixed([0.25, 4.0])).backward(batch)
    torch.testing.assert_close(direction(model), 0.25 * rows[0] + 4.0 * rows[1], rtol=0, atol=1e-14)
    MultiGradient(model, two_losses, MiniBatch(), Fixed()).backward(batch)
    torch.testing.assert_close(direction(model), rows.mean(0), rtol=0, atol=1e-14)


@pytest.mark.parametrize("weights", [[1, 2], (1.0, 2.0), torch.tensor([1.0, 2.0]), np.array([1.0, 2.0])])
def test_weights_in_several_forms(weights: Any) -> None:
    assert Fixed(weights)(torch.eye(2, dtype=torch.float64)).tolist() == [1.0, 2.0]


def test_a_step_that_is_changed_by_hand_does_not_change_the_weights() -> None:
    weighting = Fixed([0.25, 0.75])
    mg = MultiGradient(two_heads(), two_losses, MiniBatch(), weighting)
    mg.backward(data()).weights.zero_()
    assert mg.backward(data()).weights.tolist() == [0.25, 0.75]


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([0.0, 0.0], r"weights must hold a positive number, found \[0.0, 0.0\]"),
        ([], r"weights must hold a positive number, found \[\]"),
        ([1.0, -1.0], r"weights\[1\] must be a finite number of at least 0, found -1.0"),
        ([1.0, "a"], r"weights\[1\] must be a finite number, found 'a'"),
        (torch.ones(2, 2), r"weights\[0\] must be a finite number, found \[1.0, 1.0\]"),
    ],
)
def test_bad_weights(weights: Any, message: str) -> None:
    with pytest.raises(InvalidOption, match=message):
        Fixed(weights)


def test_weights_for_another_number_of_objectives() -> None:
    mg = MultiGradient(two_heads(), two_losses, MiniBatch(), Fixed([1.0, 1.0, 1.0]))
    with pytest.raises(InvalidOption, match=r"weights must hold one number per objective \(2\), found 3"):
        mg.backward(data())
