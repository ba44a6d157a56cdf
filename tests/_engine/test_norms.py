"""Squared norms against sums in float64, for entries and lengths of any size."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from stimulus_moo._engine.norms import PIECE, distance, is_long, known_squares, sq_norm_of, squares_of

SIZES = [0, 1, PIECE - 1, PIECE, PIECE + 1, 5 * PIECE + 7, 300_000]


def draw(size: int, dtype: torch.dtype = torch.float32, scale: float = 1.0) -> Tensor:
    return (torch.randn(size, generator=torch.Generator().manual_seed(size), dtype=torch.float64) * scale).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("size", SIZES)
def test_squared_norm_is_that_of_float64(size: int, dtype: torch.dtype) -> None:
    vector = draw(size, dtype)
    exact = float(vector.double().square().sum())
    # float32 pieces of 2^12 entries are summed in float32, everything else in float64
    tolerance = 1e-5 if dtype is torch.float32 and size > PIECE else 1e-12
    assert sq_norm_of([vector]) == pytest.approx(exact, rel=tolerance)
    assert sq_norm_of([vector, vector[:1], vector.view(1, -1)]) == pytest.approx(
        2 * exact + float(vector[:1].double().square().sum()), rel=tolerance
    )


@pytest.mark.parametrize("scale", [1e-44, 1e-30, 1e-20, 1e-15, 1e15, 1e19, 1e25, 1e37])
@pytest.mark.parametrize("size", [3, 2 * PIECE + 5])
def test_squares_beyond_the_range_of_float32(size: int, scale: float) -> None:
    vector = draw(size, scale=scale)
    exact = float(vector.double().square().sum())
    assert 0.0 < exact < math.inf
    assert sq_norm_of([vector]) == pytest.approx(exact, rel=1e-5)


def test_one_huge_entry_among_tiny_ones() -> None:
    vector = torch.full((3 * PIECE,), 1e-25)
    vector[PIECE] = 1e25
    assert sq_norm_of([vector]) == pytest.approx(float(vector[PIECE].double() ** 2), rel=1e-12)
    vector[PIECE] = 0.0
    assert sq_norm_of([vector]) == pytest.approx(3 * PIECE * float(vector[0].double() ** 2), rel=1e-5)


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("size", [3, 2 * PIECE + 5])
def test_what_is_not_finite_is_not_lost(size: int, value: float) -> None:
    for place in (0, -1):
        vector = draw(size)
        vector[place] = value
        assert not math.isfinite(sq_norm_of([vector]))


def test_tensors_that_are_not_contiguous() -> None:
    matrix = draw(200 * 100).view(200, 100)
    for view in (matrix.T, matrix[:, ::2], matrix[:, :1].expand(200, 50)):
        assert sq_norm_of([view]) == pytest.approx(float(view.double().square().sum()), rel=1e-5)


@pytest.mark.parametrize("size", [PIECE + 1, (1 << 18) + 3, 3_000_000])
def test_dot_products_of_long_pieces_add_up_to_the_squared_norm(size: int) -> None:
    vector = draw(size) + 1.0  # of one sign, so that rounding does not cancel
    assert is_long(vector)
    total = float(torch.stack(squares_of(vector.view(1, -1))).double().sum())
    assert total == pytest.approx(float(vector.double().square().sum()), rel=1e-5)


@pytest.mark.parametrize("scale", [1e-25, 1e25, math.nan])
def test_dot_products_tell_when_they_cannot_be_used(scale: float) -> None:
    total = float(torch.stack(squares_of(draw(2 * PIECE).mul_(scale))).double().sum())
    assert not known_squares(total)


def test_nothing_has_no_length() -> None:
    assert sq_norm_of([]) == 0.0
    assert distance([], []) == 0.0


@pytest.mark.parametrize("size", [7, (1 << 20) + 3])  # all differences at once, or one after the other
def test_distance_is_the_norm_of_the_difference(size: int) -> None:
    x, y = draw(size), draw(size).flip(0)
    exact = math.sqrt(float((x.double() - y.double()).square().sum() + 9.0))
    # the difference is rounded to float32
    assert distance([x, torch.tensor([3.0])], [y, torch.tensor([0.0])]) == pytest.approx(exact, rel=1e-5)
