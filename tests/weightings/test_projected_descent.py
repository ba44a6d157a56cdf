"""MoCo's weights, by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from stimulus_moo import InvalidOption, ProjectedDescent, project_simplex
from tests.harness import round_trip


def gramians(count: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    rows = [torch.randn(3, 5, generator=generator, dtype=torch.float64) for _ in range(count)]
    return [u @ u.T for u in rows]


@pytest.mark.parametrize("rho", [0.0, 0.2])
def test_projected_steps_by_hand(rho: float) -> None:
    weighting = ProjectedDescent(gamma=lambda t: 0.1 / (t + 1), rho=rho)
    weights = np.full(3, 1 / 3)
    for t, gramian in enumerate(gramians(8)):
        matrix = gramian.numpy() + rho * np.eye(3)
        weights = project_simplex(weights - 0.1 / (t + 1) * matrix @ weights)
        np.testing.assert_allclose(weighting(gramian).numpy(), weights, rtol=0, atol=1e-15)


def test_softmax_in_place_of_the_projection() -> None:
    weighting = ProjectedDescent(gamma=0.1, projection="softmax")
    gramian = gramians(1)[0]
    last = torch.full((3,), 1 / 3, dtype=torch.float64)
    torch.testing.assert_close(weighting(gramian), torch.softmax(last - 0.1 * gramian @ last, 0), rtol=0, atol=1e-15)


def test_normalised_rows_weigh_the_directions() -> None:
    gramian = gramians(1)[0]
    lengths = gramian.diagonal().sqrt()
    plain = ProjectedDescent(gamma=0.1)(gramian / lengths / lengths[:, None])
    weighting = ProjectedDescent(gamma=0.1, normalise=True)
    torch.testing.assert_close(weighting(gramian), plain / lengths, rtol=0, atol=1e-15)
    assert weighting.previous is not None
    torch.testing.assert_close(weighting.previous, plain, rtol=0, atol=1e-15)
    zero = torch.diag(torch.tensor([4.0, 0.0], dtype=torch.float64))
    assert torch.isfinite(ProjectedDescent(gamma=0.1, normalise=True)(zero)).all()


def test_float32_gramians_are_taken_too() -> None:
    weighting, exact = ProjectedDescent(gamma=0.1), ProjectedDescent(gamma=0.1)
    for gramian in gramians(3):
        found = weighting(gramian.float())
        torch.testing.assert_close(found, exact(gramian), rtol=0, atol=1e-6, check_dtype=False)


def test_resume_continues(tmp_path: Any) -> None:
    first, second = ProjectedDescent(gamma=lambda t: 0.1 / (t + 1)), ProjectedDescent(gamma=lambda t: 0.1 / (t + 1))
    for gramian in gramians(3):
        first(gramian)
    second.load_state_dict(round_trip(first.state_dict(), tmp_path))
    for gramian in gramians(6)[3:]:
        assert torch.equal(first(gramian), second(gramian))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"gamma": -1.0}, r"gamma must be a finite number of at least 0, found -1.0"),
        ({"gamma": 0.1, "rho": -1.0}, r"rho must be a finite number of at least 0, found -1.0"),
        ({"gamma": 0.1, "projection": "ball"}, "projection must be one of 'simplex', 'softmax', found 'ball'"),
    ],
)
def test_bad_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidOption, match=message):
        ProjectedDescent(**options)
