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


LONG = 5000  # entries of a part that is finished in the backward pass of a large model


@pytest.mark.parametrize("calls", [1, 2, 3])
@pytest.mark.parametrize("ends", ["with a gradient", "without"])
def test_the_old_row_of_a_large_model_is_added_once(calls: int, ends: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stimulus_moo._engine.row.LARGE", 0)
    parameters = [nn.Parameter(torch.ones(LONG)), nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(LONG))]
    old = Row(parameters, [torch.full((LONG,), 8.0), torch.full((2,), 4.0), None])
    row = Row(parameters)
    for k in range(calls):
        last = k + 1 == calls and ends == "with a gradient"
        row.accumulate(2 * parameters[0].sum() + parameters[1].sum(), 1.0, old, 0.5, last=last)
    row.complete(old, 0.5)
    expected = torch.cat([torch.full((LONG,), 4.0 + 2 * calls), torch.full((2,), 2.0 + calls)])
    assert row.reach == [1, 1, 0]
    assert torch.equal(flat(row), expected)
    assert row.combine(torch.ones(1))[1] == pytest.approx(float(expected @ expected))
    assert torch.equal(flat(old), torch.cat([torch.full((LONG,), 8.0), torch.full((2,), 4.0)]))


def test_a_row_uses_the_memory_of_an_earlier_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stimulus_moo._engine.row.LARGE", 0)
    parameters = [nn.Parameter(torch.ones(LONG))]
    old, row = Row(parameters, [torch.ones(LONG)]), Row(parameters)

    def step(reuse: bool) -> int:
        row.begin(reuse=reuse)
        row.accumulate(parameters[0].sum(), -1.0, old, 1.0)
        row.accumulate(2 * parameters[0].sum(), 1.0, old, 1.0, last=True)
        assert torch.equal(row.parts[0], torch.full((LONG,), 2.0))
        return row.parts[0].data_ptr()

    first = step(reuse=True)
    assert step(reuse=True) == first
    held = row.parts[0]
    assert step(reuse=False) != held.data_ptr()


def test_memory_of_an_earlier_row_is_released_where_gradients_bring_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stimulus_moo._engine.row.LARGE", 0)
    parameters = [nn.Parameter(torch.ones(LONG))]
    old, row = Row(parameters, [torch.ones(LONG)]), Row(parameters)
    row.begin(reuse=True)
    row.accumulate(parameters[0].sum(), -1.0, old, 1.0)
    row.accumulate(parameters[0].sum(), 1.0, old, 1.0, last=True)
    row.begin(reuse=True)
    assert row._memory
    row.add(0, [torch.ones(LONG)], 1.0)
    assert not row._memory
