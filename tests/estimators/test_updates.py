"""Every estimator as its linear update of the rows, against plain autograd with a second copy of the model."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

from stimulus_moo import (
    Estimator,
    Full,
    InvalidOption,
    MiniBatch,
    MultiGradient,
    Page,
    Recursive,
    Storm,
    Tracking,
    Update,
)
from tests.harness import cut, data, jacobian, stored_rows, two_heads, two_losses

COLUMNS = data(24)
BATCHES = cut(COLUMNS, 6) * 3
ANCHOR = cut(COLUMNS, 10)  # ragged: 10, 10, 4


def beta(t: int) -> float:
    return 0.9 / (t + 1)


class Reference:
    """The rules of DESIGN.md on dense matrices, with copies of the model for the earlier points."""

    def __init__(self) -> None:
        self.u = torch.zeros(2, 37, dtype=torch.float64)
        self.last: Any = None

    def gradients(self, model: Any, batch: Any) -> Tensor:
        return jacobian(model, two_losses, batch)

    def recursive(self, model: Any, batch: Any, anchored: bool) -> None:
        if anchored:
            self.u = self.gradients(model, COLUMNS)
        else:
            self.u = self.u + self.gradients(model, batch) - self.gradients(self.last, batch)

    def storm(self, model: Any, batch: Any, t: int) -> None:
        g = self.gradients(model, batch)
        self.u = g if t == 0 else g + (1 - beta(t)) * (self.u - self.gradients(self.last, batch))

    def tracking(self, model: Any, batch: Any, t: int) -> None:
        self.u = self.u - beta(t) * (self.u - self.gradients(model, batch))


def run(estimator: Estimator, rule: Any, keeps_rows: bool = True) -> MultiGradient:
    model = two_heads()
    mg = MultiGradient(model, two_losses, estimator, lambda gramian: gramian.new_tensor([0.3, 0.7]))
    reference = Reference()
    for t, batch in enumerate(BATCHES):
        step = mg.backward(batch)
        rule(reference, model, batch, t, step.anchored)
        if keeps_rows:
            torch.testing.assert_close(stored_rows(mg), reference.u, rtol=0, atol=1e-12)
        d = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
        torch.testing.assert_close(d, 0.3 * reference.u[0] + 0.7 * reference.u[1], rtol=0, atol=1e-12)
        assert float(step.sq_norm) == pytest.approx(float(d.square().sum()), rel=1e-12)
        reference.last = copy.deepcopy(model)
        with torch.no_grad():
            for p in model.parameters():
                assert p.grad is not None
                p -= 0.1 * p.grad
    return mg


def test_recursive() -> None:
    anchored: list[bool] = []

    def rule(reference: Reference, model: Any, batch: Any, t: int, at_anchor: bool) -> None:
        anchored.append(at_anchor)
        reference.recursive(model, batch, at_anchor)

    mg = run(Recursive(ANCHOR, period=5), rule)
    assert anchored == [t % 5 == 0 for t in range(12)]
    assert (mg.samples, mg.gradients) == (3 * 24 + 9 * 6, 3 * 24 + 9 * 12)


def test_page() -> None:
    anchored: list[bool] = []

    def rule(reference: Reference, model: Any, batch: Any, t: int, at_anchor: bool) -> None:
        anchored.append(at_anchor)
        reference.recursive(model, batch, at_anchor)

    mg = run(Page(ANCHOR, probability=0.3, seed=1), rule)
    k = sum(anchored)
    assert anchored[0]
    assert 1 < k < 12
    assert (mg.samples, mg.gradients) == (k * 24 + (12 - k) * 6, k * 24 + (12 - k) * 12)


def test_page_anchors_with_its_probability() -> None:
    estimator = Page(ANCHOR, probability=lambda t: 0.2 if t < 3000 else 0.7, seed=3)
    flips = [estimator.update(t).anchor is not None for t in range(6000)]
    # binomial, 3000 coins: standard deviation 22 and 25, four of them
    assert sum(flips[:3000]) == pytest.approx(600, abs=88)
    assert sum(flips[3000:]) == pytest.approx(2100, abs=100)
    assert [Page(ANCHOR, 0.0).update(t).anchor is None for t in range(3)] == [False, True, True]
    assert all(Page(ANCHOR, 1.0).update(t).anchor is not None for t in range(100))


def test_storm() -> None:
    mg = run(Storm(beta), lambda reference, model, batch, t, _: reference.storm(model, batch, t))
    assert (mg.samples, mg.gradients) == (12 * 6, 6 + 11 * 12)


def test_storm_with_beta_one_is_the_mini_batch_and_costs_as_much() -> None:
    mg = run(
        Storm(1.0), lambda reference, model, batch, t, _: setattr(reference, "u", jacobian(model, two_losses, batch))
    )
    assert (mg.samples, mg.gradients) == (72, 72)


def test_tracking() -> None:
    mg = run(Tracking(beta), lambda reference, model, batch, t, _: reference.tracking(model, batch, t))
    assert (mg.samples, mg.gradients) == (72, 72)


def test_mini_batch() -> None:
    def rule(reference: Reference, model: Any, batch: Any, t: int, _: bool) -> None:
        reference.u = jacobian(model, two_losses, batch)

    mg = run(MiniBatch(), rule, keeps_rows=False)
    assert mg.rows() == []
    assert (mg.samples, mg.gradients) == (72, 72)


def test_full() -> None:
    def rule(reference: Reference, model: Any, batch: Any, t: int, anchored: bool) -> None:
        assert anchored
        reference.u = jacobian(model, two_losses, COLUMNS)

    mg = run(Full(ANCHOR), rule, keeps_rows=False)
    assert mg.rows() == []
    assert (mg.samples, mg.gradients) == (12 * 24, 12 * 24)


def test_updates_as_data() -> None:
    assert MiniBatch().update(3) == Update(keep=0.0, now=1.0)
    assert Tracking(0.25).update(0) == Update(keep=0.0, now=0.25)
    assert Tracking(0.25).update(1) == Update(keep=0.75, now=0.25)
    assert Storm(0.25).update(0) == Update(keep=0.0, now=1.0)
    assert Storm(0.25).update(1) == Update(keep=0.75, now=1.0, before=-0.75)
    recursive = Recursive(ANCHOR, 2)
    assert recursive.update(2) == Update(keep=0.0, now=1.0, anchor=recursive.anchor)
    assert recursive.update(3) == Update(keep=1.0, now=1.0, before=-1.0, recursive=True)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Recursive(ANCHOR, period=0), "period must be a positive integer or 'auto', found 0"),
        (lambda: Recursive(ANCHOR, period=2.5), "period must be .* or 'auto', found 2.5"),  # type: ignore[arg-type]
        (lambda: Page(ANCHOR, probability=1.5), r"probability must lie in \[0, 1\], found 1.5"),
        (lambda: Page(ANCHOR, probability=0.5, seed=-3), "seed must be an integer .*, found -3"),
        (lambda: Storm(beta=-0.1), r"beta must lie in \[0, 1\], found -0.1"),
        (lambda: Tracking(beta="fast"), "beta must be a finite number, found 'fast'"),  # type: ignore[arg-type]
        (lambda: Storm(lambda t: 2.0).update(4), r"beta\(4\) must lie in \[0, 1\], found 2.0"),
        (lambda: Update(keep=0.0, now=1.0, before=-1.0, anchor=Full(ANCHOR).anchor), "before must be 0 .* found -1.0"),
    ],
)
def test_bad_options(build: Any, message: str) -> None:
    with pytest.raises(InvalidOption, match=message):
        build()


# Estimators of one's own


class Average(Estimator):
    """The mean of all mini-batch gradients so far."""

    remembers = True

    def update(self, t: int) -> Update:
        return Update(keep=t / (t + 1), now=1 / (t + 1))


def test_an_estimator_of_ones_own() -> None:
    model = two_heads()
    mg = MultiGradient(model, two_losses, Average())
    for batch in BATCHES[:4]:
        mg.backward(batch)
    torch.testing.assert_close(stored_rows(mg), jacobian(model, two_losses, COLUMNS), rtol=0, atol=1e-14)


class Restarting(Estimator):
    """Keeps half of the rows when it anchors."""

    remembers = True

    def __init__(self) -> None:
        self.anchor = Full(ANCHOR).anchor

    def update(self, t: int) -> Update:
        return Update(keep=0.5 if t else 0.0, now=1.0, anchor=self.anchor)


@pytest.mark.parametrize("large", [False, True])
def test_an_anchor_may_keep_rows(large: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if large:
        monkeypatch.setattr("stimulus_moo._engine.store.STAGED_ENTRIES", 0)
    model = two_heads()
    mg = MultiGradient(model, two_losses, Restarting())
    for _ in range(3):
        mg.backward()
    torch.testing.assert_close(stored_rows(mg), 1.75 * jacobian(model, two_losses, COLUMNS), rtol=0, atol=1e-13)


class Forgetful(Estimator):
    """Wants rows and a point that it did not ask to be stored."""

    def __init__(self, update: Update) -> None:
        self.wish = update

    def update(self, t: int) -> Update:
        return self.wish if t else Update(keep=0.0, now=1.0)


@pytest.mark.parametrize("update", [Update(keep=1.0, now=1.0), Update(keep=0.0, now=1.0, before=-1.0)])
def test_an_estimator_that_did_not_say_what_to_store_is_told(update: Update) -> None:
    mg = MultiGradient(two_heads(), two_losses, Forgetful(update))
    mg.backward(BATCHES[0])
    with pytest.raises(InvalidOption, match=r"update at step 1 needs rows or a point .* remembers and two_point"):
        mg.backward(BATCHES[1])
    assert mg.t == 1


class Flipping(Estimator):
    """Decides by the global random state, which both points must not see differently."""

    two_point = finite_sum = remembers = True

    def update(self, t: int) -> Update:
        torch.rand(1)
        return Update(keep=1.0, now=1.0, before=-1.0) if t else Update(keep=0.0, now=1.0)


def test_both_points_see_the_same_draw_after_an_estimator_drew() -> None:
    mg = MultiGradient(two_heads(torch.nn.Dropout(0.5)), two_losses, Flipping())
    mg.backward(BATCHES[0])
    before = mg.rows()
    mg.backward(BATCHES[1])  # the parameters did not move
    assert all(torch.equal(row[name], old[name]) for row, old in zip(mg.rows(), before, strict=True) for name in row)
