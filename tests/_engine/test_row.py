"""The one row of kept weights: its parts and its memory in blocks agree, whatever was added."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from stimulus_moo._engine.row import Row

PARAMETERS = [nn.Parameter(torch.zeros(2, 3)), nn.Parameter(torch.zeros(4))]


def parts(scale: float) -> list[Tensor]:
    return [torch.full((2, 3), scale), torch.full((4,), 2 * scale)]


def flat(row: Row) -> Tensor:
    return torch.cat([part.reshape(-1) for part in row.parts if part is not None])


def test_sums_are_those_of_the_parts() -> None:
    row = Row(PARAMETERS, [parts(1.0)[0], None])
    row.add(0, parts(3.0), 0.5)
    row.scale(2.0)
    assert row.reach == [1, 1]
    assert torch.equal(row.parts[0], torch.full((2, 3), 5.0))
    assert torch.equal(row.parts[1], torch.full((4,), 6.0))
    assert row.combine(torch.ones(1))[1] == pytest.approx(6 * 25 + 4 * 36)
    assert row.distance(Row(PARAMETERS, parts(1.0)), torch.ones(1)) == pytest.approx((6 * 16 + 4 * 16) ** 0.5)


def test_blocks_are_the_memory_of_the_parts() -> None:
    row = Row(PARAMETERS, room=[1, 1])
    row.replace([1, 1], [torch.arange(10.0)])
    row.scale(2.0)
    assert torch.equal(row.matrices()[0], 2 * torch.arange(10.0))
    assert torch.equal(flat(row), row.matrices()[0])
    assert row.flat is row.matrices()[0]
    row.replace([1, 0], [torch.arange(10.0)])
    assert row.flat is None


def test_accumulating_leaves_the_gradients_of_the_user() -> None:
    parameters = [nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(1))]
    own = torch.full((3,), 7.0)
    parameters[0].grad = own
    row = Row(parameters)
    for _ in range(2):
        row.accumulate((parameters[0].sum() * 2 + parameters[1].sum() * 3), 0.5)
    assert parameters[0].grad is own
    assert parameters[1].grad is None
    assert float(own.sum()) == 21.0
    assert row.reach == [1, 1, 0]
    assert torch.equal(flat(row), torch.tensor([2.0, 2.0, 2.0, 3.0, 3.0]))


def test_a_part_that_is_reached_later_is_in_the_blocks() -> None:
    row = Row(PARAMETERS, room=[1, 1])
    row.replace([1, 0], [torch.ones(10)])
    row.add(0, parts(3.0), 1.0)
    assert torch.equal(row.matrices()[0], flat(row))
