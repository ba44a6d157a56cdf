"""MinNorm as a weighting: exactness is tested with the solver, here the options and their effect."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from stimulus_moo import InvalidOption, MinNorm, MultiGradient, Recursive, kkt_residual
from tests.harness import cut, data, stored_rows, two_heads, two_losses


def gramian(rows: Any) -> Tensor:
    u = torch.as_tensor(rows, dtype=torch.float64)
    return u @ u.T


def random_rows(objectives: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(objectives, 8, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("objectives", [1, 2, 3, 10])
def test_direction_descends_every_objective(objectives: int) -> None:
    u = random_rows(objectives)
    weights = MinNorm()(gramian(u))
    d = weights @ u
    assert float((u @ d).min()) >= float(d @ d) - 1e-12
    assert kkt_residual(gramian(u).numpy(), weights.numpy()) <= 1e-10


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_weights_have_the_type_of_the_gramian(dtype: torch.dtype) -> None:
    weights = MinNorm()(torch.tensor([[1.0, 0.0], [0.0, 3.0]], dtype=dtype))
    assert (weights.dtype, weights.tolist()) == (dtype, [0.75, 0.25])


@pytest.mark.parametrize("objectives", [1, 2, 3])
def test_other_types_and_tensors_that_track_gradients(objectives: int) -> None:
    plain = gramian(random_rows(objectives)).bfloat16()
    expected = MinNorm()(plain.double())
    assert torch.equal(MinNorm()(plain), expected.bfloat16())
    tracked = MinNorm()(plain.double().requires_grad_())
    assert torch.equal(tracked, expected)
    assert not tracked.requires_grad


@pytest.mark.parametrize("objectives", [2, 3, 10])
def test_weights_depend_on_the_gramian_alone(objectives: int) -> None:
    weighting = MinNorm()
    first, second = gramian(random_rows(objectives, 1)), gramian(random_rows(objectives, 2))
    before = weighting(first)
    kept = before.clone()
    weighting(second)
    assert torch.equal(before, kept)  # memory of its own
    for other in (weighting, copy.deepcopy(weighting), pickle.loads(pickle.dumps(weighting))):
        assert torch.equal(other(first), kept)
    assert weighting.state_dict() == {"kind": "MinNorm"}


def test_preference_decides_the_ratio_of_decreases() -> None:
    u = random_rows(3, seed=2)
    preference = [1.0, 2.0, 0.5]
    weights = MinNorm(preference)(gramian(u))
    assert float(weights.sum()) == pytest.approx(1.0, abs=1e-14)
    decrease = (u @ (weights @ u)).numpy()
    ratios = decrease / np.array(preference)
    active = weights.numpy() > 1e-9
    assert active.sum() >= 2
    assert np.ptp(ratios[active]) <= 1e-10 * ratios[active].max()
    assert ratios.min() >= ratios[active].min() - 1e-10


def test_normalise_ignores_the_lengths_of_the_rows() -> None:
    u = random_rows(3, seed=2)
    lengths = torch.tensor([1e-3, 1.0, 1e4], dtype=torch.float64)
    weights = MinNorm(normalise=True)(gramian(u))
    scaled = MinNorm(normalise=True)(gramian(u * lengths[:, None]))
    d, other = weights @ u, scaled @ (u * lengths[:, None])
    torch.testing.assert_close(other / other.norm(), d / d.norm(), rtol=0, atol=1e-9)
    decrease = (u / u.norm(dim=1, keepdim=True)) @ d
    assert int((weights > 1e-9).sum()) >= 2
    assert float(decrease[weights > 1e-9].max() - decrease.min()) <= 1e-12


def test_normalise_leaves_zero_rows_alone() -> None:
    weights = MinNorm(normalise=True)(gramian([[3.0, 0.0], [0.0, 0.0]]))
    assert weights.tolist() == [0.0, 1.0]


def test_options_change_the_weights_and_never_the_rows() -> None:
    columns = data()
    rows = []
    for weighting in (MinNorm(), MinNorm([1.0, 5.0]), MinNorm(normalise=True)):
        mg = MultiGradient(two_heads(), two_losses, Recursive(cut(columns, 7), 4), weighting)
        weights = mg.backward().weights
        rows.append((stored_rows(mg), weights))
    assert torch.equal(rows[0][0], rows[1][0])
    assert torch.equal(rows[0][0], rows[2][0])
    assert not torch.allclose(rows[0][1], rows[1][1])


@pytest.mark.parametrize(
    ("preference", "message"),
    [
        ([1.0, 0.0], r"preference\[1\] must be a finite number above 0, found 0.0"),
        ([1.0, -1.0], r"preference\[1\] must be a finite number above 0, found -1.0"),
        (["a"], r"preference\[0\] must be a finite number, found 'a'"),
    ],
)
def test_bad_preferences(preference: Any, message: str) -> None:
    with pytest.raises(InvalidOption, match=message):
        MinNorm(preference)


def test_a_preference_for_another_number_of_objectives() -> None:
    with pytest.raises(InvalidOption, match=r"one number per objective \(2\), found 3"):
        MinNorm([1.0, 1.0, 1.0])(torch.eye(2, dtype=torch.float64))
