"""Rows and the last point as transactions; above all the path for large models, which updates U in place."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from stimulus_moo import (
    MultiGradient,
    NonFiniteError,
    ProjectedDescent,
    Smoothed,
    Storm,
)
from stimulus_moo._engine.rows import Block, Rows
from stimulus_moo._engine.transaction import Account
from tests.database import ESTIMATORS, STAGED_ENTRIES
from tests.harness import cut, data, differing, everything, same, train, two_heads, two_losses

COLUMNS = data(24)
BATCHES = (cut(COLUMNS, 6) * 2)[:6]


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(STAGED_ENTRIES, 0)


def build(name: str, losses: Any = two_losses, micro_batch: int | None = 4, dropout: float = 0.3) -> MultiGradient:
    weighting = Smoothed(ProjectedDescent(gamma=0.1), alpha=0.5)
    model = two_heads(nn.Dropout(dropout))
    return MultiGradient(model, losses, ESTIMATORS[name].build(), weighting, micro_batch=micro_batch)


def path(mg: MultiGradient, batches: Any = BATCHES) -> Tensor:
    torch.manual_seed(3)
    return train(mg, batches)


def test_losses_are_averaged_by_size() -> None:
    account = Account()
    for value, size in [(1.0, 1), (4.0, 2), (2.0, 5)]:
        account.add(torch.tensor([value, -value], dtype=torch.float64), size)
    assert account.losses is not None
    torch.testing.assert_close(account.losses, torch.tensor([19.0, -19.0], dtype=torch.float64) / 8)


@pytest.mark.parametrize("name", ESTIMATORS)
@pytest.mark.parametrize("micro_batch", [None, pytest.param(4, marks=pytest.mark.slow)])
def test_large_models_take_the_same_path(name: str, micro_batch: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    small = build(name, micro_batch=micro_batch)
    expected = path(small)
    monkeypatch.setattr(STAGED_ENTRIES, 0)
    mg = build(name, micro_batch=micro_batch)
    torch.testing.assert_close(path(mg), expected, rtol=0, atol=1e-12)
    assert (mg.samples, mg.gradients) == (small.samples, small.gradients)


@pytest.mark.usefixtures("large")
@pytest.mark.parametrize("name", ESTIMATORS)
def test_large_models_have_one_matrix(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    whole = Block.__init__

    def counting(self: Block, *arguments: Any) -> None:
        whole(self, *arguments)
        made.append(self.matrix.numel())

    monkeypatch.setattr(Block, "__init__", counting)
    mg = build(name)
    path(mg)
    assert sum(made) == 2 * 25 + 6 + 6  # the blocks of one U, made once


def test_small_models_have_two_and_reuse_them(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Rows] = []
    whole = Rows.__init__

    def counting(self: Rows, *arguments: Any) -> None:
        whole(self, *arguments)
        made.append(self)

    monkeypatch.setattr(Rows, "__init__", counting)
    path(build("recursive"))
    assert len(made) == 2


class Boom(Exception):
    pass


class Fault:
    """Fails at the n-th evaluation, or at the n-th backward pass, of a step."""

    def __init__(self) -> None:
        self.forward: int | None = None
        self.backward: int | None = None
        self.seen = [0, 0]

    def arm(self, forward: int | None = None, backward: int | None = None) -> None:
        self.forward, self.backward, self.seen = forward, backward, [0, 0]

    def losses(self, model: nn.Module, batch: Any) -> Any:
        self.seen[0] += 1
        values = two_losses(model, batch)
        if self.seen[0] == self.forward:
            raise Boom
        return tuple(NanGradient.apply(value, self) for value in values)


class NanGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, fault: Fault) -> Tensor:
        ctx.fault = fault
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        ctx.fault.seen[1] += 1
        return gradients[0] * (torch.nan if ctx.fault.seen[1] == ctx.fault.backward else 1.0), None


def but_for_rows(mg: MultiGradient) -> dict[str, Any]:
    found = everything(mg)
    del found["state"]["rows"]
    return found


@pytest.mark.usefixtures("large")
@pytest.mark.parametrize("name", ["recursive", "storm", "tracking"])
def test_failed_inner_steps_of_large_models_drop_the_rows_and_nothing_else(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Rows that nothing was added to stay; rows that were being written are dropped, and the estimator restarts."""
    dropped = 0
    points = 2 if name != "tracking" else 1
    for n in range(1, 2 * points + 1):
        for kind in ({"forward": n}, {"backward": 2 * n - 1}, {"backward": 2 * n}):
            fault = Fault()
            mg = build(name, fault.losses)
            path(mg, BATCHES[:2])
            fault.arm(**kind)
            before, rows = but_for_rows(mg), mg.rows()
            caplog.clear()
            with caplog.at_level("INFO", "stimulus_moo"), pytest.raises((Boom, NonFiniteError)):
                mg.backward(BATCHES[2])
            fault.arm()
            assert differing(before, but_for_rows(mg)) == []
            assert same(mg.rows(), rows) or mg.rows() == []
            if not mg.rows():
                dropped += 1
                assert "the estimator restarts at the next step" in caplog.text
                step = mg.backward(BATCHES[2])
                assert step.anchored == (name == "recursive")
                if name == "storm":  # y_0 = g_0(x_0): one point
                    assert mg.gradients - before["counters"][2] == len(BATCHES[2][0])
            else:
                mg.backward(BATCHES[2])
    assert dropped >= 2


@pytest.mark.usefixtures("large")
@pytest.mark.parametrize("name", ["recursive", "storm, forgets", "full"])
def test_failed_anchors_of_large_models_leave_a_working_estimator(name: str) -> None:
    fault = Fault()
    mg = build(name, fault.losses)
    expected, found = build(name), []
    torch.manual_seed(3)
    for t, batch in enumerate(BATCHES):
        anchor = name == "full" or t % 3 == 0
        if anchor:  # a step that forgets the rows: it starts again from the same place
            fault.arm(backward=3)  # the second piece
            before = but_for_rows(mg)
            with pytest.raises(NonFiniteError):
                mg.backward(batch)
            fault.arm()
            assert differing(before, but_for_rows(mg)) == []
        found.append(train(mg, [batch])[0])
    torch.testing.assert_close(torch.stack(found), path(expected), rtol=0, atol=1e-12)


@pytest.mark.usefixtures("large")
def test_a_large_model_saved_after_a_failed_anchor_resumes() -> None:
    expected = path(build("recursive", dropout=0.0))
    fault = Fault()
    mg = build("recursive", fault.losses, dropout=0.0)
    path(mg, BATCHES[:3])
    fault.arm(backward=3)
    with pytest.raises(NonFiniteError):
        mg.backward(BATCHES[3])
    fresh = build("recursive", dropout=0.0)
    fresh.objective.model.load_state_dict(mg.objective.model.state_dict())
    fresh.load_state_dict(mg.state_dict())
    torch.testing.assert_close(train(fresh, BATCHES[3:]), expected[3:], rtol=0, atol=1e-12)


@pytest.mark.usefixtures("large")
def test_a_wider_reach_is_forgotten_with_the_rows() -> None:
    branch = [False]

    def losses(model: nn.Module, batch: Any) -> Any:
        left, right = two_losses(model, batch)
        if branch[0]:
            left = left + model.extra.sum()
        return left, right

    model = two_heads()
    model.extra = nn.Parameter(torch.ones(3, dtype=torch.float64))
    calls = [0]

    def weighting(gramian: Tensor) -> Tensor:
        calls[0] += 1
        if branch[0]:
            raise Boom
        return torch.tensor([0.5, 0.5])

    mg = MultiGradient(model, losses, Storm(0.0), weighting)
    train(mg, BATCHES[:2])
    rows = mg.rows()
    branch[0] = True
    with pytest.raises(Boom):
        mg.backward(BATCHES[2])
    branch[0] = False
    assert rows
    assert mg.rows() == []
    mg.backward(BATCHES[2])
    assert [row.keys() for row in mg.rows()] == [row.keys() for row in rows]
    assert model.extra.grad is None


@pytest.mark.usefixtures("large")
def test_an_interruption_while_a_row_is_written_drops_the_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    mg = build("recursive")
    path(mg, BATCHES[:2])
    whole = Rows.add_one

    def interrupted(self: Rows, *arguments: Any) -> None:
        whole(self, *arguments)
        raise KeyboardInterrupt  # it is not known whether the row was added

    monkeypatch.setattr(Rows, "add_one", interrupted)
    before = but_for_rows(mg)
    with pytest.raises(KeyboardInterrupt):
        mg.backward(BATCHES[2])
    monkeypatch.setattr(Rows, "add_one", whole)
    assert differing(before, but_for_rows(mg)) == []
    assert mg.rows() == []
    assert mg.backward(BATCHES[2]).anchored


def test_a_commit_keeps_copies_of_the_point() -> None:
    mg = build("storm")
    mg.backward(BATCHES[0])
    before = mg.state_dict()["previous"]
    with torch.no_grad():
        for p in mg.objective.parameters:
            p.add_(1.0)
    assert same(mg.state_dict()["previous"], before)
