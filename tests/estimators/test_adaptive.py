"""The adaptive estimator: alone while losses fall, recursive once they stall, and back where differences are large."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from stimulus_moo import Adaptive, MinNorm, MultiGradient, StateMismatch
from stimulus_moo.estimators import adaptive
from stimulus_moo.estimators.adaptive import FRESH, STREAM
from stimulus_moo.estimators.base import DIFFERENCE


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the running means decide after a few steps."""
    monkeypatch.setattr(adaptive, "LOOK", 6)
    monkeypatch.setattr(adaptive, "FAST", 0.5)
    monkeypatch.setattr(adaptive, "SLOW", 0.8)


DATA = torch.Generator().manual_seed(0)
X = torch.randn(48, 3, generator=DATA, dtype=torch.float64)
Y = torch.randn(48, 2, generator=DATA, dtype=torch.float64)


def losses(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return (model(batch[0]) - batch[1]).square().mean(0)


def make(lr: float = 0.0, **options: Any) -> tuple[nn.Module, MultiGradient, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Linear(3, 1, bias=False).double()
    anchor = options.pop("anchor", [(X[:24], Y[:24]), (X[24:], Y[24:])])
    mg = MultiGradient(model, losses, Adaptive(anchor), MinNorm(), **options)
    return model, mg, torch.optim.SGD(model.parameters(), lr=lr)


def batch_at(k: int) -> tuple[Tensor, Tensor]:
    pick = torch.arange(6 * k, 6 * k + 6) % 48
    return X[pick], Y[pick]


def test_losses_that_fall_need_one_point_at_a_time() -> None:
    rule = Adaptive([X])
    for t in range(40):
        assert rule.update(t) == FRESH
        rule.learn(_seen(losses=[0.9**t, 2 * 0.9**t]))
        rule.record(1.0, anchored=False)


def test_losses_that_stall_are_followed_by_an_anchor_and_differences_until_these_cost_as_much() -> None:
    rule = Adaptive([X])
    kinds = []
    for t in range(16):
        update = rule.update(t)
        kinds.append("anchor" if update.anchor is not None else "difference" if update == DIFFERENCE else "fresh")
        cost = 48 if update.anchor is not None else 24 if update == DIFFERENCE else 12
        rule.learn(_seen(losses=[1.0, 2.0], gradients=cost, anchored=update.anchor is not None, change=0.1))
        rule.record(1.0, anchored=update.anchor is not None)
    assert kinds == ["fresh"] * 6 + (["anchor"] + ["difference"] * 2) * 3 + ["anchor"]


def test_a_loss_may_be_negative() -> None:
    rule = Adaptive([X])
    for t in range(20):
        assert rule.update(t) == FRESH
        rule.learn(_seen(losses=[-0.5 * t, 1.0]))
    assert not rule.stalled()


def test_differences_as_large_as_gradients_are_given_up() -> None:
    rule = Adaptive([X])
    for t in range(7):
        update = rule.update(t)
        rule.learn(_seen(losses=[1.0, 1.0], gradients=12, anchored=update.anchor is not None))
        rule.record(1.0, anchored=update.anchor is not None)
    assert rule.recursive
    assert rule.update(7) == DIFFERENCE
    rule.learn(_seen(losses=[1.0, 1.0], gradients=12, change=0.9))  # 0.81 of the mean square of a gradient
    assert rule.update(8) == FRESH
    assert not rule.recursive
    assert [rule.update(t) == FRESH for t in range(9, 12)] == [True] * 3  # it takes a while before the next attempt


def test_streams_use_the_rule_of_storm() -> None:
    rule = Adaptive()
    kinds = []
    for t in range(9):
        kinds.append(rule.update(t))
        rule.learn(_seen(losses=[1.0], gradients=6, change=0.1))
        rule.record(1.0, anchored=False)
    assert kinds == [FRESH] * 7 + [STREAM] * 2


@pytest.mark.parametrize("options", [{}, {"reweigh": 4}, {"reweigh": "auto"}, {"reweigh": 4, "gramian": "sketch"}])
def test_estimates_follow_the_rule_at_a_fixed_point(options: dict[str, Any]) -> None:
    """At a model that does not move, batches stall; from the anchor on the estimate is the full gradient exactly."""
    model, mg, _ = make(**options)
    seen = []
    for k in range(10):
        step = mg.backward(batch_at(k))
        data = (X, Y) if k >= 6 else batch_at(k)
        rows = torch.stack(
            [torch.autograd.grad(loss, model.weight, retain_graph=True)[0][0] for loss in losses(model, data)]
        )
        torch.testing.assert_close(model.weight.grad[0], step.weights.double() @ rows, rtol=1e-9, atol=1e-12)
        seen.append((step.anchored, mg.estimator.recursive))
    assert seen[:7] == [(False, False)] * 6 + [(True, True)]
    if options:
        assert mg.passes < 2 * mg.gradients  # some steps differentiate one loss


def test_weights_are_solved_for_where_rows_are_complete() -> None:
    _, mg, optimizer = make(lr=1e-6, reweigh=2)
    kinds = []
    for k in range(14):
        step = mg.backward(batch_at(k))
        optimizer.step()
        kinds.append((step.reweighed, mg.estimator.recursive, step.anchored))
    inner = [reweighed for reweighed, recursive, anchored in kinds if recursive and not anchored]
    assert inner
    assert not any(inner)
    assert any(reweighed for reweighed, _, anchored in kinds if anchored)


@pytest.mark.parametrize("stop", [3, 8])
def test_a_state_continues_bit_for_bit(stop: int) -> None:
    def run(cut: bool) -> tuple[Tensor, int]:
        model, mg, optimizer = make(lr=1e-3, reweigh="auto")
        for k in range(14):
            if cut and k == stop:
                state, values = mg.state_dict(), model.state_dict()
                model, mg, optimizer = make(lr=1e-3, reweigh="auto")
                model.load_state_dict(values)
                mg.load_state_dict(state)
            mg.backward(batch_at(k))
            optimizer.step()
        return model.weight.detach(), mg.passes

    (straight, passes), (resumed, others) = run(False), run(True)
    assert torch.equal(straight, resumed)
    assert passes == others


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"recursive": 1}, "recursive"),
        ({"fast": [None]}, "fast"),
        ({"level": [-1.0]}, "level"),
        ({"count": -1}, "count"),
    ],
)
def test_a_wrong_state_is_refused(change: dict[str, Any], message: str) -> None:
    rule = Adaptive([X])
    with pytest.raises(StateMismatch, match=message):
        rule.load_state_dict({**rule.state_dict(), **change})


def masked_losses(model: nn.Module, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, ...]:
    x, y = batch
    known = y.isfinite()
    return tuple((model(x)[known[:, s], 0] - y[known[:, s], s]).square().mean() for s in range(2))


@pytest.mark.parametrize("first", [0, 2])  # the batch without a label of the second objective
def test_a_batch_without_labels_leaves_the_means_of_that_objective(first: int) -> None:
    y = Y.clone()
    y[6 * first : 6 * first + 6, 1] = torch.nan
    model = nn.Linear(3, 1, bias=False).double()
    mg = MultiGradient(model, masked_losses, Adaptive([(X, y)]), counts=lambda batch: batch[1].isfinite().sum(0))
    rule, recursive = mg.estimator, []
    for k in range(9):
        before, pick = rule.state_dict(), torch.arange(6 * k, 6 * k + 6) % 48
        step = mg.backward((X[pick], y[pick]))
        recursive.append(rule.recursive)
        if k == first:
            assert step.losses.isnan().tolist() == [False, True]
        if k == first > 0:
            assert all(before[name][1] == rule.state_dict()[name][1] for name in ("fast", "slow", "level"))
        mg.load_state_dict(mg.state_dict())  # which refuses NaN
    assert recursive == [False] * 6 + [True] * 3  # as without missing labels


def _seen(**values: Any) -> Any:
    """What a step has shown, as far as the rule looks at it."""
    from stimulus_moo import Observation

    known = {"step": 0, "samples": 6, "gradients": 6, "anchored": False, **values}
    return Observation(**{**known, "losses": torch.tensor(known["losses"], dtype=torch.float64)})
