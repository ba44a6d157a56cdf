"""Whatever is raised in a step with kept weights, at any size of the model, everything is as it was."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from stimulus_moo import MiniBatch, MultiGradient, NonFiniteError, Recursive, Storm, Tracking
from tests.database import STAGED_ENTRIES
from tests.harness import differing, everything, train, two_heads, two_losses
from tests.kept_rules import BATCHES, EVERY, RULES
from tests.test_multigradient_faults import (
    Boom,
    Plan,
    expected_path,
    raise_at_exit,
    raise_in_backward,
    run_with_faults,
)

pytestmark = pytest.mark.filterwarnings("ignore::stimulus_moo.StimulusWarning")

#: the estimator's name in the database, and options: four steps have two solves and two kept steps
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "mini-batch": ("mini-batch", {"reweigh": 2}),
    "tracking": ("tracking", {"reweigh": 2}),
    "storm": ("storm", {"reweigh": 2}),
    "recursive": ("recursive, adaptive", {"reweigh": "anchor"}),
    "page": ("page, adaptive", {"reweigh": "auto"}),
    "sketch": ("mini-batch", {"reweigh": 2, "gramian": "sketch"}),
}
ANCHORS = ("recursive, adaptive", {"reweigh": "anchor", "gramian": "sketch"})


@pytest.mark.parametrize("fail", [raise_at_exit, raise_in_backward])
@pytest.mark.parametrize("case", [*CASES, "sketched anchors"])
def test_an_exception_at_any_evaluation_never_happened(case: str, fail: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(STAGED_ENTRIES, 0)
    name, options = CASES.get(case, ANCHORS)
    path, errors = run_with_faults(name, fail, Boom, micro_batch=None, **options)
    assert len(errors) >= 4  # at least one at each of four steps
    assert torch.equal(path, expected_path(name, micro_batch=None, **options))


class Root(nn.Module):
    """Two parameters; a batch says how large the gradients of three losses are, and for which there is none."""

    def __init__(self, dtype: torch.dtype = torch.float64) -> None:
        super().__init__()
        self.x = nn.Parameter(torch.ones(2, dtype=dtype))
        self.y = nn.Parameter(torch.ones(2, dtype=dtype))


def root_losses(model: Root, batch: Tensor) -> tuple[Tensor, ...]:
    """Loss s has an infinite slope for a batch with a 1 in column s; its value is finite all the same."""
    total = model.x.sum() + model.y.square().sum()
    slope = (0.0 * total).abs().sqrt()  # 0, and its derivative is 0 * infinity
    return tuple((s + 1.0) * total + (slope if bool(batch[:, s].any()) else 0.0) for s in range(3))


GOOD = torch.zeros(4, 3, dtype=torch.float64)


def bad(objective: int) -> Tensor:
    """The last sample has no finite gradient for this objective."""
    batch = GOOD.clone()
    batch[-1, objective] = 1.0
    return batch


@pytest.mark.parametrize("objective", [0, 1, 2])
@pytest.mark.parametrize("micro_batch", [None, 2])
@pytest.mark.parametrize("name", ["mini-batch", "tracking", "storm", "storm, sketch", "mini-batch, auto"])
def test_a_gradient_that_is_not_finite_is_that_of_its_objective(
    name: str, micro_batch: int | None, objective: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At solves and at kept steps, also for an objective whose weight is 0."""
    monkeypatch.setattr(STAGED_ENTRIES, 0)
    weights = torch.tensor([0.0, 0.5, 0.5], dtype=torch.float64)
    mg = RULES[name].make(Root(), root_losses, weighting=lambda gramian: weights, micro_batch=micro_batch)
    for t in range(5):
        before = everything(mg)
        with pytest.raises(NonFiniteError, match=f"gradient of objective {objective} .* at step {t}") as caught:
            mg.backward(bad(objective))
        assert (caught.value.objective, caught.value.step) == (objective, t)
        assert differing(before, everything(mg)) == []
        mg.backward(GOOD)


@pytest.mark.parametrize("reweigh", ["anchor", "auto"])
@pytest.mark.parametrize("gramian", ["exact", "sketch"])
def test_an_anchor_that_is_not_finite_names_the_objective(reweigh: str, gramian: str) -> None:
    anchor = [GOOD, GOOD]
    mg = MultiGradient(Root(), root_losses, Recursive(anchor, 2), reweigh=reweigh, gramian=gramian)
    for t in range(6):
        if t % 2 == 0:
            anchor[1], before = bad(1), everything(mg)
            with pytest.raises(NonFiniteError, match=f"gradient of objective 1 .* at step {t}"):
                mg.backward(GOOD)
            anchor[1] = GOOD
            assert differing(before, everything(mg)) == []
        mg.backward(GOOD)


def test_a_gradient_that_is_not_finite_at_the_last_point_only() -> None:
    """The model moved away from a point where the square root has no slope; the batch is compared there."""

    class Point(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.x = nn.Parameter(torch.ones(1, dtype=torch.float64))

    def losses(model: Point, shift: Tensor) -> tuple[Tensor, Tensor]:
        return model.x.sum(), (model.x - shift).abs().sqrt().mean()

    for t in (1, 2):  # a kept step, and a solve
        model = Point()
        mg = MultiGradient(model, losses, Storm(0.1), reweigh=2)
        for _ in range(t):
            mg.backward(torch.zeros(2, dtype=torch.float64))
        model.x.data.fill_(2.0)
        before = everything(mg)
        with pytest.raises(NonFiniteError, match=rf"gradient of objective 1 .* at step {t}"):
            mg.backward(torch.ones(2, dtype=torch.float64))
        assert differing(before, everything(mg)) == []
        assert mg.backward(torch.zeros(2, dtype=torch.float64)).losses[0] == 2.0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_a_direction_that_overflows_names_the_largest_objective(dtype: torch.dtype) -> None:
    """Every gradient is finite; the running sum of a rule is not."""
    model = Root(dtype)
    huge = torch.finfo(dtype).max / 4

    def losses(model: Root, batch: Tensor) -> tuple[Tensor, ...]:
        return (model.x * batch[0, 0] * 0.1).sum() / 1024, (model.x * batch[0, 0]).sum() / 1024

    mg = MultiGradient(model, losses, Tracking(lambda t: 1.0), lambda g: torch.tensor([1.0, 1e6]).double(), reweigh=2)
    mg.backward(torch.ones(1, 1, dtype=dtype))
    before = everything(mg)
    with pytest.raises(NonFiniteError, match=r"too large for .* most of it from objective 1"):
        mg.backward(torch.full((1, 1), huge, dtype=dtype))
    assert differing(before, everything(mg)) == []


def test_rows_whose_weighted_sum_overflows_at_the_last_point_leave_the_parameters() -> None:
    """Single rows are finite at both points; their sum under the kept weights is not, at x_{t-1} already."""
    model = Root(torch.float32)

    def losses(model: Root, batch: Tensor) -> tuple[Tensor, ...]:
        return (model.x * batch[0, 0]).sum(), (model.y.square() * batch[0, 0]).sum()

    mg = MultiGradient(model, losses, Storm(0.3), lambda gramian: torch.full((2,), 1e6).double(), reweigh=5)
    mg.backward(torch.ones(1, 1))
    with torch.no_grad():
        model.x += 1.0
    before = everything(mg)
    with pytest.raises(NonFiniteError, match="too large"):
        mg.backward(torch.full((1, 1), 1e36))
    assert differing(before, everything(mg)) == []


def test_an_exception_while_the_objective_is_looked_for_never_happened() -> None:
    """Single rows are computed again, to find the one that is not finite; the losses may raise there."""
    plan = [Plan()]

    def losses(model: Root, batch: Tensor) -> tuple[Tensor, ...]:
        plan[0].check()
        return root_losses(model, batch)

    mg = MultiGradient(Root(), losses, Storm(0.3), reweigh=3)
    for _ in range(2):
        mg.backward(GOOD)
    seen = []
    for at in range(1, 5):  # x_{t-1}, and again
        plan[0] = Plan(at)
        before = everything(mg)
        with pytest.raises((Boom, NonFiniteError)) as caught:
            mg.backward(bad(2))
        seen.append(caught.type)
        assert differing(before, everything(mg)) == []
    assert seen == [Boom, Boom, NonFiniteError, NonFiniteError]
    plan[0] = Plan()
    assert not mg.backward(GOOD).skipped


@pytest.mark.parametrize("name", ["mini-batch", "tracking", "storm", "recursive", "storm, sketch", "fixed"])
def test_a_skipped_step_has_no_effect(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Above the staging threshold too: the run goes on bit for bit as one that was not disturbed."""
    monkeypatch.setattr(STAGED_ENTRIES, 0)
    plain, disturbed = RULES[name].make(), RULES[name].make(on_nonfinite="skip")
    skipped = 0
    for batch in BATCHES[:6]:
        x, y = batch
        if not (t_anchors(disturbed)):
            counts = disturbed.t, disturbed.samples, disturbed.gradients, disturbed.passes
            step = disturbed.backward((x * torch.nan, y))
            assert (step.skipped, step.reweighed) == (True, False)
            assert bool(step.weights.isnan().all())
            assert all(p.grad is None for p in disturbed.objective.parameters)
            assert counts == (disturbed.t, disturbed.samples, disturbed.gradients, disturbed.passes)
            skipped += 1
        assert torch.equal(train(disturbed, [batch]), train(plain, [batch]))
    assert disturbed.skipped == skipped >= 4


def t_anchors(mg: MultiGradient) -> bool:
    """Whether the next step is an anchor, which does not use the batch."""
    return mg.estimator.anchor is not None and mg.t % 3 == 0


def test_a_weighting_that_fails_at_a_solve_never_happened() -> None:
    calls = [0]

    def weighting(gramian: Tensor) -> Tensor:
        calls[0] += 1
        if calls[0] % 2 == 0:
            raise Boom("weighting")
        return torch.tensor([0.5, 0.5], dtype=torch.float64)

    for build in (MiniBatch, lambda: Storm(0.3), lambda: Tracking(0.3)):
        calls[0] = 0
        mg = MultiGradient(two_heads(nn.Dropout(0.2)), two_losses, build(), weighting, **EVERY)
        for t, batch in enumerate(BATCHES[:7]):
            if t and t % 3 == 0:
                before = everything(mg)
                with pytest.raises(Boom):
                    mg.backward(batch)
                assert differing(before, everything(mg)) == []
            train(mg, [batch])
