"""U in blocks: values, storage, the Gramian, the combination."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from stimulus_moo import MinNorm
from stimulus_moo._engine import products
from stimulus_moo._engine import rows as rows_module
from stimulus_moo._engine.rows import Rows, Storage


def parameters() -> list[Tensor]:
    """Shapes and dtypes of a trunk, two heads and a scalar, of 6 + 3 + 2 + 1 entries."""
    kinds = [torch.float64, torch.float32, torch.bfloat16, torch.float64]
    return [torch.zeros(shape, dtype=kind) for shape, kind in zip([(2, 3), (3,), (2, 1), ()], kinds, strict=True)]


def filled(reach: Sequence[int], objectives: int = 2, seed: int = 0) -> tuple[Rows, Tensor]:
    """Rows with random entries where ``reach`` allows, and the same as a dense matrix."""
    generator = torch.Generator().manual_seed(seed)
    own = parameters()
    rows = Rows(own, objectives, [True] * len(own))
    rows.cover(reach)
    dense = torch.zeros(objectives, sum(p.numel() for p in own), dtype=torch.float64)
    for s in range(objectives):
        members = [i for i, mask in enumerate(reach) if mask >> s & 1]
        gradients = [torch.randn(own[i].shape, generator=generator).to(own[i].dtype) for i in members]
        rows.add(s, parts(own, dict(zip(members, gradients, strict=True))), 0.5)
        dense[s] = as_dense(dict(zip(members, gradients, strict=True)), own) * 0.5
    return rows, dense


def parts(own: Sequence[Tensor], given: dict[int, Tensor]) -> list[Tensor | None]:
    return [given.get(i) for i in range(len(own))]


def as_dense(parts: dict[int, Tensor], own: list[Tensor]) -> Tensor:
    return torch.cat([parts.get(i, torch.zeros_like(p)).double().flatten() for i, p in enumerate(own)])


def dense_of(rows: Rows) -> Tensor:
    return torch.stack([as_dense(rows.row(s), parameters()) for s in range(rows.objectives)])


REACHES = st.lists(st.integers(0, 7), min_size=4, max_size=4)


@settings(max_examples=40, deadline=None)
@given(first=REACHES, second=REACHES, weights=st.lists(st.floats(-2, 2), min_size=3, max_size=3))
def test_rows_are_the_dense_matrix_whatever_is_reached(
    first: list[int], second: list[int], weights: list[float]
) -> None:
    rows, dense = filled(first, objectives=3)
    other, more = filled(second, objectives=3, seed=1)
    rows.merge(other, -0.25)
    expected = dense - 0.25 * more
    # float32 entries of order 1 are rounded at 6e-8 of their size; bfloat16 terms are exact in float32
    torch.testing.assert_close(dense_of(rows), expected, rtol=0, atol=1e-6)
    exact = dense_of(rows)
    torch.testing.assert_close(rows.gramian(), exact @ exact.T, rtol=0, atol=1e-12)
    torch.testing.assert_close(rows.sq_norms(), exact.square().sum(1), rtol=0, atol=1e-12)
    chosen = torch.tensor(weights, dtype=torch.float64)
    direction, sq_norm = rows.combine(chosen)
    assert [d is None for d in direction] == [not a | b for a, b in zip(first, second, strict=True)]
    # computed from rows in float32, so to its rounding
    assert float(sq_norm) == pytest.approx(float((chosen @ exact).square().sum()), rel=1e-5, abs=1e-10)


def test_direction_has_the_shape_and_dtype_of_the_parameters() -> None:
    rows, dense = filled([3, 1, 2, 3])
    direction, _ = rows.combine(torch.tensor([0.25, 0.75], dtype=torch.float64))
    for d, p in zip(direction, parameters(), strict=True):
        assert d is not None
        assert (d.shape, d.dtype) == (p.shape, p.dtype)
    found = {i: d for i, d in enumerate(direction) if d is not None}
    expected = 0.25 * dense[0] + 0.75 * dense[1]
    torch.testing.assert_close(as_dense(found, parameters()), expected, rtol=0, atol=1e-2)  # bfloat16: 3 digits


def test_what_one_objective_reaches_is_stored_once() -> None:
    own = [torch.zeros(10, 10), torch.zeros(7), torch.zeros(5)]
    rows = Rows(own, 2, [True] * 3)
    rows.cover([0b11, 0b01, 0b10])
    assert sum(block.matrix.numel() for block in rows.blocks) == 2 * 100 + 7 + 5
    assert len(rows.blocks) == 3


def test_a_model_without_heads_is_one_matrix() -> None:
    own = [torch.zeros(3, 2), torch.zeros(4), torch.zeros(())]
    rows = Rows(own, 5, [True] * 3)
    rows.cover([0b11111] * 3)
    assert [block.matrix.shape for block in rows.blocks] == [(5, 11)]


def test_rows_are_at_least_float32() -> None:
    own = [torch.zeros(2, dtype=kind) for kind in (torch.float16, torch.bfloat16, torch.float32, torch.float64)]
    rows = Rows(own, 1, [True] * 4)
    rows.cover([1] * 4)
    kinds = [part.dtype for part in rows.row(0).values()]
    assert kinds == [torch.float32, torch.float32, torch.float32, torch.float64]
    rows.add(0, parts(own, {1: torch.tensor([256.0, 1.0], dtype=torch.bfloat16)}), 1.0)
    rows.add(0, parts(own, {1: torch.tensor([1.0, 2**-9], dtype=torch.bfloat16)}), 1.0)
    assert rows.row(0)[1].tolist() == [257.0, 1.0 + 2**-9]  # both would be lost in bfloat16


def test_gramian_counts_only_what_decides_and_sq_norm_counts_all() -> None:
    own = [torch.zeros(2), torch.zeros(3)]
    rows = Rows(own, 2, [True, False])
    rows.cover([3, 3])
    rows.add(0, [torch.tensor([1.0, 2.0]), torch.ones(3)], 1.0)
    rows.add(1, [torch.tensor([0.0, 1.0]), torch.ones(3)], 1.0)
    assert rows.gramian().tolist() == [[5.0, 2.0], [2.0, 1.0]]
    assert float(rows.combine(torch.ones(2, dtype=torch.float64))[1]) == 1 + 9 + 3 * 4


@pytest.mark.parametrize("columns", [1, 6, 7, 64])
@pytest.mark.parametrize("size", [4, 9])
@pytest.mark.parametrize("kind", [torch.float32, torch.float64, torch.bfloat16])
def test_gramian_in_chunks_is_the_gramian(
    columns: int, size: int, kind: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(products, "CHUNK", 2 * size + 1)
    monkeypatch.setattr(products, "WHOLE", 1)
    rows = Rows([torch.zeros(columns)], size, [True], Storage(dtype=kind))
    values = torch.randn(size, columns, generator=torch.Generator().manual_seed(0)).to(kind)
    for s in range(size):
        rows.load(s, [values[s]])
    exact = values.double() @ values.double().T
    torch.testing.assert_close(rows.gramian(), exact, rtol=0, atol=1e-13)


@pytest.mark.parametrize("size", [2, 9])
def test_a_gramian_that_overflows_in_float32_is_done_in_float64(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "CHUNK", 2)
    monkeypatch.setattr(products, "WHOLE", 1)
    rows = Rows([torch.zeros(40)], size, [True])
    rows.load(0, [torch.full((40,), 1e30)])
    rows.load(1, [torch.ones(40)])
    expected = torch.tensor([[4e61, 4e31], [4e31, 40.0]], dtype=torch.float64)
    torch.testing.assert_close(rows.gramian()[:2, :2], expected, rtol=1e-6, atol=0)


WIDE = 70_000  # columns; such rows are converted to float64 in several chunks


def wide(values: Tensor) -> Rows:
    rows = Rows([torch.zeros(values.shape[1])], len(values), [True])
    for s, row in enumerate(values):
        rows.load(s, [row])
    return rows


def kkt_residual(gramian: Tensor, weights: Tensor) -> float:
    """How far the weights are from the least norm: max over s of lambda^T G lambda - (G lambda)_s, relative to G."""
    products = gramian @ weights
    return float((weights @ products - products.min()).clamp(min=0) / gramian.diagonal().max())


@pytest.mark.parametrize("size", [2, 8])
def test_weights_of_wide_float32_rows_satisfy_the_kkt_conditions(size: int) -> None:
    values = torch.randn(size, WIDE, generator=torch.Generator().manual_seed(0)) + 0.2
    exact = values.double() @ values.double().T
    assert kkt_residual(exact, MinNorm()(wide(values).gramian())) < 1e-12


def test_weights_of_nearly_parallel_wide_rows_are_exact() -> None:
    generator = torch.Generator().manual_seed(0)
    shared, *noise = torch.randn(3, WIDE, generator=generator, dtype=torch.float64)
    orthogonal = [each - each @ shared / (shared @ shared) * shared for each in noise]
    values = torch.stack([shared + 1e-4 * each for each in orthogonal]).float()
    exact = MinNorm()(values.double() @ values.double().T)
    assert 0.1 < float(exact[0]) < 0.9
    torch.testing.assert_close(MinNorm()(wide(values).gramian()), exact, rtol=0, atol=1e-6)


@pytest.mark.parametrize("scale", [1e-22, 1e-30, 1e22, 1e30])
def test_weights_of_wide_rows_do_not_depend_on_the_scale(scale: float) -> None:
    """Squares of such entries are zero or infinite in float32."""
    values = torch.randn(2, WIDE, generator=torch.Generator().manual_seed(0)) * torch.tensor([[1.0], [1.5]])
    expected = MinNorm()(wide(values).gramian())
    found = MinNorm()(wide(values * scale).gramian())
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)  # entries are rounded when they are scaled


@settings(max_examples=40, deadline=None)
@given(reach=REACHES)
def test_stacked_rows_are_single_rows(reach: list[int]) -> None:
    """Rows for which there is no room are zero, or room is made for them."""
    own = [torch.zeros(shape) for shape in [(2, 3), (3,), (2, 1), ()]]
    generator = torch.Generator().manual_seed(1)
    stacked: list[Tensor | None] = []
    for mask, p in zip(reach, own, strict=True):
        full = torch.randn(3, *p.shape, generator=generator)
        for s in range(3):
            if not mask >> s & 1:
                full[s] = 0
        stacked.append(full if mask else None)
    one, other = Rows(own, 3, [True] * 4), Rows(own, 3, [True] * 4)
    one.make_room([mask & 3 for mask in reach])  # the third objective was not seen yet
    one.add_stacked(stacked, -0.5)
    for s in range(3):
        other.add(s, [None if g is None else g[s] for g in stacked], -0.5)
    for s in range(3):
        assert torch.equal(as_dense(one.row(s), own), as_dense(other.row(s), own))


def test_gramian_of_float32_rows_is_exact_in_float64() -> None:
    own = [torch.zeros(3)]
    rows = Rows(own, 1, [True])
    rows.cover([1])
    rows.add(0, [torch.tensor([4096.0, 1.0, 1.0])], 1.0)
    assert rows.gramian().item() == 4096.0**2 + 2  # float32 would give 4096^2


def test_clear_forgets_values_and_reach_and_keeps_the_memory() -> None:
    rows, _ = filled([3, 1, 2, 3])
    matrices = [block.matrix.data_ptr() for block in rows.blocks]
    rows.clear()
    assert rows.row(0) == {}
    assert rows.combine(torch.ones(2, dtype=torch.float64))[0] == [None] * 4
    rows.cover([1, 0, 0, 0])
    assert [block.matrix.data_ptr() for block in rows.blocks] == matrices
    assert dense_of(rows).abs().max() == 0


def test_zeros_that_are_owed_are_written_when_they_are_needed() -> None:
    lazy, dense = filled([3, 1, 2, 3])
    own = parameters()
    lazy.clear(lazily=True)
    assert dense_of(lazy).abs().max() == 0  # nothing is reached
    lazy.add_one(0, 0, torch.full((2, 3), 3.0, dtype=torch.float64), 0.5)
    lazy.add_one(0, 0, torch.ones(2, 3, dtype=torch.float64), 0.5)
    lazy.add_one(1, 2, torch.full((2, 1), 4.0, dtype=torch.bfloat16), 0.25)  # float32 rows of a bfloat16 parameter
    lazy.settle()
    expected = torch.zeros_like(dense)
    expected[0] = as_dense({0: torch.full((2, 3), 2.0)}, own)
    expected[1] = as_dense({2: torch.ones(2, 1)}, own)
    assert torch.equal(dense_of(lazy), expected)
    assert torch.equal(lazy.gramian(), expected @ expected.T)
    lazy.cover([3, 1, 2, 3])
    assert torch.equal(dense_of(lazy), expected)


def test_a_wider_reach_keeps_the_values() -> None:
    rows, dense = filled([1, 0, 2, 3])
    rows.cover([3, 3, 2, 3])
    torch.testing.assert_close(dense_of(rows), dense, rtol=0, atol=1e-6)
    assert rows.layout == [3, 3, 2, 3]
    assert set(rows.row(1)) == {0, 1, 2, 3}


def test_room_that_is_made_ahead_is_not_reach() -> None:
    rows = Rows(parameters(), 2, [True] * 4)
    rows.make_room([3, 3, 3, 3])
    rows.cover([1, 0, 0, 0])
    assert (rows.layout, rows.reach) == ([3, 3, 3, 3], [1, 0, 0, 0])
    assert set(rows.row(0)) == {0}
    assert rows.row(1) == {}


def test_memory_that_runs_out_leaves_the_rows_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, dense = filled([1, 0, 2, 3])
    whole = rows_module.Block.__init__

    def fails(self: rows_module.Block, objectives: list[int], members: list[int], *rest: Any) -> None:
        if members == [2]:
            raise MemoryError
        whole(self, objectives, members, *rest)

    monkeypatch.setattr(rows_module.Block, "__init__", fails)
    with pytest.raises(MemoryError):
        rows.cover([3, 3, 3, 3])
    torch.testing.assert_close(dense_of(rows), dense, rtol=0, atol=1e-6)


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_first_non_finite_names_the_row(value: float) -> None:
    rows, _ = filled([3, 1, 2, 3])
    assert rows.first_non_finite() is None
    rows.add(1, parts(parameters(), {0: torch.full((2, 3), value, dtype=torch.float64)}), 1.0)
    assert rows.first_non_finite() == 1
    rows.add(0, parts(parameters(), {1: torch.full((3,), value)}), 1.0)
    assert rows.first_non_finite() == 0


def test_a_sum_that_overflows_is_not_a_non_finite_row() -> None:
    rows = Rows([torch.zeros(2)], 1, [True])
    rows.cover([1])
    rows.add(0, [torch.full((2,), 3e38)], 1.0)
    assert rows.first_non_finite() is None
