"""The adaptive estimator: alone while losses fall, recursive once they stall, and back where differences are large."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from stimulus_moo import Adaptive, MinNorm, MultiGradient, StateMismatch, fit
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
        rule.record(0.1 if update.anchor is not None else 1.0, anchored=update.anchor is not None)
    assert kinds == ["fresh"] * 6 + (["anchor"] + ["difference"] * 2) * 3 + ["anchor"]


def test_no_anchor_is_begun_that_the_budget_cannot_pay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stimulus_moo.training.limits.ANCHOR_SHARE", 1.0)
    data = (torch.ones(48, 3, dtype=torch.float64), torch.ones(48, 2, dtype=torch.float64))  # losses do not change
    first, alone, needed = 24, 5 * 12, 3 * 48  # the first step solves for two weights; so may an anchor; then a period
    for passes, anchors in ((first + alone + needed, 1), (first + alone + needed - 1, 0)):
        torch.manual_seed(0)
        model = nn.Linear(3, 1, bias=False).double()
        result = fit(model, losses, data, batch_size=12, passes=passes, progress=False, reweigh=10**6, lr=1e-12)
        assert sum(result.history["anchored"]) == anchors
        assert passes <= result.passes < passes + 24  # a step takes 24 at the most


def test_under_fit_a_trial_waits_until_its_anchor_is_a_tenth_of_what_was_spent() -> None:
    data = (torch.ones(48, 3, dtype=torch.float64), torch.ones(48, 2, dtype=torch.float64))  # losses do not change
    model = nn.Linear(3, 1, bias=False).double()
    result = fit(model, losses, data, batch_size=12, steps=60, progress=False, lr=1e-12)
    assert result.history["anchored"].index(True) == 40  # 40 batches of 12 are ten times 48


def test_a_loss_may_be_negative() -> None:
    rule = Adaptive([X])
    for t in range(20):
        assert rule.update(t) == FRESH
        rule.learn(_seen(losses=[-0.5 * t, 1.0]))
    assert not rule.stalled()


def on_trial(cost: int = 480, signal: float = 1e-3) -> Adaptive:
    """A rule that has just taken its first anchor; batches have 6 samples and gradients of length 1."""
    rule = Adaptive([X])
    for t in range(7):
        anchored = rule.update(t).anchor is not None
        rule.learn(_seen(losses=[1.0, 1.0], gradients=cost if anchored else 6, anchored=anchored))
        rule.record(signal if anchored else 1.0, anchored=anchored)
    assert rule.recursive
    return rule


def lasts(rule: Adaptive, changes: list[float], losses: float = 1.0) -> int:
    """Show the rule differences of these lengths; return how many it made."""
    for k, change in enumerate(changes):
        if rule.update(7 + k) == FRESH:
            return k
        rule.learn(_seen(losses=[losses, losses], gradients=12, change=change))
    return len(changes)


def test_small_differences_are_used() -> None:
    q = 480 / 12
    assert lasts(on_trial(), [0.99 * q**-0.5] * 39) == 39  # q times their square is below that of a gradient


def test_differences_that_are_too_large_for_a_period_are_given_up_when_they_grow() -> None:
    assert lasts(on_trial(), [0.2] * 5 + [0.4] * 30) == 6


def test_differences_may_become_small_within_a_period() -> None:
    assert lasts(on_trial(), [0.97**k for k in range(39)]) == 39
    assert lasts(on_trial(cost=12 * 20), [0.99**k for k in range(39)]) == 20  # not small after it


def test_losses_that_rise_end_a_trial() -> None:
    assert lasts(on_trial(), [1e-3] * 30, losses=1.1) == 30
    assert lasts(on_trial(), [1e-3] * 30, losses=1.6) < 4


def test_an_anchor_with_a_large_gradient_ends_a_trial() -> None:
    q = 480 / 12
    assert lasts(on_trial(signal=3.99 / q), [1e-3] * 30) == 30
    assert lasts(on_trial(signal=4.01 / q), [1e-3] * 30) == 0  # the noise does not dominate


@pytest.mark.parametrize(("signal", "stays"), [(0.99, True), (1.01, False)])
def test_the_gradient_shrinks_from_the_first_anchor_to_the_second(signal: float, stays: bool) -> None:
    q = 480 / 12
    rule = on_trial(signal=3.99 / q)
    assert lasts(rule, [1e-3] * 40) == 40
    assert rule.update(47).anchor is not None
    rule.learn(_seen(losses=[1.0, 1.0], gradients=480, anchored=True))
    rule.record(signal / q, anchored=True)
    assert (rule.update(48) == DIFFERENCE) is stays


def test_a_second_trial_waits_longer_and_is_the_last() -> None:
    rule, trials, since = on_trial(), [], 0
    for t in range(7, 200):
        update = rule.update(t)
        anchored, since = update.anchor is not None, since + 1
        if anchored:
            trials.append(since)
        if update == DIFFERENCE:
            since = 0
        rule.learn(_seen(losses=[1.0, 1.0], gradients=480 if anchored else 6, anchored=anchored, change=float(t)))
        rule.record(1e-3 if anchored else 1.0, anchored=anchored)
    assert trials == [4 * 6 + 1]
    assert rule.failures == 2
    assert not rule.recursive


def test_streams_use_the_rule_of_storm() -> None:
    rule = Adaptive()
    kinds = []
    for t in range(9):
        kinds.append(rule.update(t))
        rule.learn(_seen(losses=[1.0], gradients=6, change=0.1))
        rule.record(1.0, anchored=False)
    assert kinds == [FRESH] * 7 + [STREAM] * 2


@pytest.fixture
def _any_signal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let anchors have gradients of any length."""
    monkeypatch.setattr(adaptive, "SIGNAL", math.inf)


@pytest.mark.usefixtures("_any_signal")
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


@pytest.mark.usefixtures("_any_signal")
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


@pytest.mark.usefixtures("_any_signal")
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
        ({"entry": ["a"]}, "entry"),
        ({"failures": -1}, "failures"),
        ({"first": -1.0}, "first"),
        ({"signal": -1.0}, "signal"),
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


@pytest.mark.usefixtures("_any_signal")
@pytest.mark.parametrize("first", [0, 2])  # the batch without a label of the second objective
def test_a_batch_without_labels_leaves_the_means_of_that_objective(first: int) -> None:
    torch.manual_seed(0)  # the losses of a model that does not move decide when they stall
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
