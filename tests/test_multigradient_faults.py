"""Whatever is raised inside ``backward``, everything is as it was, and the run goes on as if nothing had happened."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from stimulus_moo import (
    AdaptiveBatch,
    Estimator,
    InvalidWeights,
    MinNorm,
    MultiGradient,
    NonFiniteError,
    ProjectedDescent,
    Recursive,
    Smoothed,
    Storm,
    Update,
)
from tests.database import ESTIMATORS, STAGED_ENTRIES
from tests.harness import cut, data, differing, everything, train, two_heads, two_losses

pytestmark = pytest.mark.filterwarnings("ignore::stimulus_moo.StimulusWarning")

COLUMNS = data(24)
BATCHES = cut(COLUMNS, 6) * 2
STEPS = 4  # two anchors and two inner steps where the period is 3


class Boom(Exception):
    """What a user's code raises."""


class Plan:
    """Lets the n-th event of one call of ``backward`` fail."""

    def __init__(self, fail_at: int | None = None, error: BaseException | None = None) -> None:
        self.fail_at = fail_at
        self.error = Boom("planned") if error is None else error
        self.events = 0

    def event(self) -> bool:
        self.events += 1
        return self.events == self.fail_at

    def check(self) -> None:
        if self.event():
            raise self.error


def middle() -> nn.Module:
    """Random layers and buffers, so that both must be brought back."""
    return nn.Sequential(nn.BatchNorm1d(5, dtype=torch.float64), nn.Dropout(0.3))


def adaptive() -> AdaptiveBatch:
    return AdaptiveBatch(COLUMNS, epsilon=0.1, micro_batch=16)


#: "recursive, momentum" draws single samples, which BatchNorm refuses
NAMES = [name for name, info in ESTIMATORS.items() if info.pairs and name not in ("recursive, momentum", "filtered")]
NAMES.append("storm")


def build(name: str, losses: Any, micro_batch: int | None = 4, **options: Any) -> MultiGradient:
    weighting = Smoothed(ProjectedDescent(gamma=0.1), alpha=0.5)
    options["micro_batch"] = micro_batch
    return MultiGradient(two_heads(middle()), losses, ESTIMATORS[name].build(), weighting, **options)


def faulty(plan: list[Plan], fail: Callable[[Plan, Any, Any], Any]) -> Any:
    """Losses that let the current plan act."""

    def losses(model: nn.Module, batch: Any) -> Any:
        return fail(plan[0], model, batch)

    return losses


def expected_path(name: str, **options: Any) -> Tensor:
    mg = build(name, two_losses, **options)
    torch.manual_seed(3)
    return train(mg, BATCHES[:STEPS])


def run_with_faults(
    name: str, fail: Callable[[Plan, Any, Any], Any], kind: type[BaseException], **options: Any
) -> tuple[Tensor, list[BaseException]]:
    """Before every step, let its events fail in turn; the path of the steps that succeed, and the errors."""
    plan = [Plan()]
    mg = build(name, faulty(plan, fail), **options)
    torch.manual_seed(3)
    path, errors = [], []
    for batch in BATCHES[:STEPS]:
        at = 1
        while True:
            plan[0] = Plan(fail_at=at)
            before = everything(mg)
            try:
                mg.backward(batch)
                break
            except kind as error:
                errors.append(error)
            assert differing(before, everything(mg)) == []
            assert not any("could not be restored" in note for note in getattr(errors[-1], "__notes__", ()))
            at += 1 if at < 6 else 5
        with torch.no_grad():
            for p in mg.objective.parameters:
                assert p.grad is not None
                p -= 0.05 * p.grad
        path.append(torch.cat([p.detach().flatten() for p in mg.objective.parameters]))
    return torch.stack(path), errors


def raise_at_entry(plan: Plan, model: Any, batch: Any) -> Any:
    plan.check()
    return two_losses(model, batch)


def raise_at_exit(plan: Plan, model: Any, batch: Any) -> Any:
    losses = two_losses(model, batch)  # after the random state and the buffers have moved on
    plan.check()
    return losses


@pytest.mark.parametrize(("name", "fail"), [*((name, raise_at_exit) for name in NAMES), ("recursive", raise_at_entry)])
def test_an_exception_at_any_evaluation_never_happened(name: str, fail: Any) -> None:
    path, errors = run_with_faults(name, fail, Boom)
    assert len(errors) >= 2 * STEPS  # at least two pieces a step, each failed once
    assert torch.equal(path, expected_path(name))


def test_the_users_exception_is_passed_on_unchanged() -> None:
    for error in (Boom("mine"), KeyboardInterrupt(), SystemExit(3), RuntimeError("torch")):
        plan = [Plan()]
        mg = build("recursive", faulty(plan, raise_at_exit))
        train(mg, BATCHES[:2])
        for at in (1, 2, 3, 4):  # both pieces at both points
            plan[0] = Plan(at, error)
            before = everything(mg)
            with pytest.raises(type(error)) as caught:
                mg.backward(BATCHES[1])
            assert caught.value is error
            assert differing(before, everything(mg)) == []


class FailingBackward(torch.autograd.Function):
    """The identity, whose gradient is the plan's to decide."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, plan: Plan, value: float | None) -> Tensor:
        ctx.plan, ctx.value = plan, value
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        if ctx.value is None:
            ctx.plan.check()
            return gradients[0], None, None
        return (gradients[0] * ctx.value if ctx.plan.event() else gradients[0]), None, None


def raise_in_backward(plan: Plan, model: Any, batch: Any) -> Any:
    return tuple(FailingBackward.apply(loss, plan, None) for loss in two_losses(model, batch))


@pytest.mark.parametrize("name", NAMES)
def test_an_exception_in_any_backward_pass_never_happened(name: str) -> None:
    path, errors = run_with_faults(name, raise_in_backward, Boom)
    assert len(errors) >= 4 * STEPS  # two rows for at least two pieces a step
    assert torch.equal(path, expected_path(name))


@pytest.mark.parametrize(("name", "value"), [*((name, torch.nan) for name in NAMES), ("storm", torch.inf)])
def test_a_gradient_that_is_not_finite_never_enters(name: str, value: float) -> None:
    def fail(plan: Plan, model: Any, batch: Any) -> Any:
        return tuple(FailingBackward.apply(loss, plan, value) for loss in two_losses(model, batch))

    path, errors = run_with_faults(name, fail, NonFiniteError)
    assert len(errors) >= 4 * STEPS
    for error in errors:
        assert isinstance(error, NonFiniteError)
        assert error.objective in (0, 1)
        assert f"gradient of objective {error.objective} contains NaN or infinity at step {error.step}" in str(error)
    assert {error.objective for error in errors} == {0, 1}  # type: ignore[attr-defined]
    assert {error.step for error in errors} == set(range(STEPS))  # type: ignore[attr-defined]
    assert torch.equal(path, expected_path(name))


@pytest.mark.parametrize(("name", "value"), [*((name, torch.nan) for name in NAMES), ("storm", -torch.inf)])
def test_a_loss_that_is_not_finite_never_enters(name: str, value: float) -> None:
    def fail(plan: Plan, model: Any, batch: Any) -> Any:
        left, right = two_losses(model, batch)
        return left, right + (value if plan.event() else 0.0)

    path, errors = run_with_faults(name, fail, NonFiniteError)
    assert len(errors) >= 2 * STEPS
    assert {(e.objective, e.step) for e in errors} == {(1, t) for t in range(STEPS)}  # type: ignore[attr-defined]
    assert all(f"loss of objective 1 is {value} at step" in str(error) for error in errors)
    assert torch.equal(path, expected_path(name))


def test_not_finite_at_the_last_point_only() -> None:
    """The model moved away from a point where the square root has no slope; the batch is compared there."""

    class Point(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.x = nn.Parameter(torch.ones(1, dtype=torch.float64))

    def losses(model: Point, shift: Tensor) -> tuple[Tensor, Tensor]:
        return model.x.sum(), (model.x - shift).abs().sqrt().mean()

    model = Point()
    mg = MultiGradient(model, losses, Storm(0.1))
    mg.backward(torch.zeros(2, dtype=torch.float64))
    model.x.data.fill_(2.0)
    before = everything(mg)
    with pytest.raises(NonFiniteError, match=r"gradient of objective 1 .* at step 1") as caught:
        mg.backward(torch.ones(2, dtype=torch.float64))
    assert (caught.value.objective, caught.value.step) == (1, 1)
    assert differing(before, everything(mg)) == []
    assert mg.backward(torch.zeros(2, dtype=torch.float64)).losses[0] == 2.0


def test_rows_that_overflow_when_they_are_added_up_never_enter() -> None:
    """Each gradient is finite, their sum with the kept rows is not."""

    class Point(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.x = nn.Parameter(torch.zeros(1))

    class Summing(Estimator):
        remembers = True

        def update(self, t: int) -> Update:
            return Update(keep=1.0 if t else 0.0, now=1.0)

    mg = MultiGradient(Point(), lambda m, s: (m.x.sum() * s.mean(), m.x.sum()), Summing(), lambda g: torch.zeros(2))
    huge = torch.full((1,), 2e38)
    mg.backward(huge)
    before = everything(mg)
    with pytest.raises(NonFiniteError, match="objective 0"):
        mg.backward(huge)
    assert differing(before, everything(mg)) == []


# Weightings and data that fail


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("garbage", [False, True])
def test_a_weighting_that_fails_never_happened(name: str, garbage: bool) -> None:
    inner = Smoothed(MinNorm(), alpha=0.5)

    class Moody(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("total", torch.zeros(2, dtype=torch.float64))
            self.calls = 0
            self.fail = False

        def forward(self, gramian: Tensor) -> Tensor:
            self.calls += 1
            self.total += torch.rand(2, dtype=torch.float64)  # the global random state too
            if self.fail and garbage:
                return self.total * torch.nan
            if self.fail:
                raise Boom("weighting")
            return inner(gramian) + 0.01 * self.total

    def build(weighting: nn.Module) -> MultiGradient:
        return MultiGradient(two_heads(middle()), two_losses, ESTIMATORS[name].build(), weighting)

    calm = build(Moody())
    torch.manual_seed(4)
    expected = train(calm, BATCHES[:STEPS])
    inner.load_state_dict(Smoothed(MinNorm(), alpha=0.5).state_dict())
    weighting = Moody()
    mg = build(weighting)
    torch.manual_seed(4)
    path = []
    for batch in BATCHES[:STEPS]:
        weighting.fail = True
        before = everything(mg)
        with pytest.raises(InvalidWeights if garbage else Boom):
            mg.backward(batch)
        before["state"]["weighting"]["plain"][""]["fail"] = True
        assert differing(before, everything(mg)) == []
        weighting.fail = False
        path.append(train(mg, [batch])[0])
    assert torch.equal(torch.stack(path), expected)


@pytest.mark.parametrize("at", [0, 1, 2, 3])
def test_an_anchor_that_raises_never_happened(at: int) -> None:
    class Disk:
        def __init__(self) -> None:
            self.broken = False

        def __iter__(self) -> Iterator[Any]:
            for i, batch in enumerate(cut(COLUMNS, 10)):
                if self.broken and i == at:
                    raise OSError("disk")
                torch.rand(1)  # as a shuffling loader does
                yield batch
            if self.broken:
                raise OSError("disk")

    def build(disk: Disk) -> MultiGradient:
        return MultiGradient(two_heads(middle()), two_losses, Recursive(disk, 3))

    torch.manual_seed(3)
    calm = build(Disk())
    torch.manual_seed(3)
    expected = train(calm, BATCHES[:STEPS])
    disk = Disk()
    mg = build(disk)
    torch.manual_seed(3)
    path = []
    for t, batch in enumerate(BATCHES[:STEPS]):
        if t % 3 == 0:
            disk.broken = True
            before = everything(mg)
            with pytest.raises(OSError, match="disk"):
                mg.backward(batch)
            assert differing(before, everything(mg)) == []
            disk.broken = False
        path.append(train(mg, [batch])[0])
    assert torch.equal(torch.stack(path), expected)


def test_an_estimator_that_raises_while_it_learns_never_happened() -> None:
    class Moody(Recursive):
        fail = False

        def record(self, sq_norm: float, *, anchored: bool) -> None:
            super().record(sq_norm, anchored=anchored)
            if self.fail:
                raise Boom("record")

    estimator = Moody(adaptive(), 3)
    mg = MultiGradient(two_heads(), two_losses, estimator)
    train(mg, BATCHES[:2])
    estimator.fail = True
    before = everything(mg)
    with pytest.raises(Boom, match="record"):
        mg.backward(BATCHES[2])
    assert differing(before, everything(mg)) == []


@pytest.mark.parametrize("large", [False, True])
def test_autocast_is_as_it_was_after_a_failure(large: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row that is refused must not leave the library's own full precision open behind the user's context."""
    if large:
        monkeypatch.setattr(STAGED_ENTRIES, 0)
    plan = [Plan()]

    def fail(plan: Plan, model: Any, batch: Any) -> Any:
        return tuple(FailingBackward.apply(loss, plan, torch.nan) for loss in two_losses(model, batch))

    mg = build("storm", faulty(plan, fail))
    plan[0] = Plan(1)
    kept = None
    with torch.autocast("cpu", dtype=torch.bfloat16):
        try:
            mg.backward(BATCHES[0])
        except NonFiniteError as error:
            kept = error  # and with it the frames in which it was raised
        assert torch.is_autocast_enabled("cpu")
    assert not torch.is_autocast_enabled("cpu")
    assert kept is not None
    del kept
    gc.collect()
    assert not torch.is_autocast_enabled("cpu")


class Fickle(Estimator):
    """Forgets, or does not, by a plan that knows nothing of steps."""

    remembers = True

    def __init__(self, keeps: list[float]) -> None:
        self.keeps = iter(keeps)

    def update(self, t: int) -> Update:
        return Update(keep=next(self.keeps) if t else 0.0, now=1.0)


@pytest.mark.parametrize("large", [True, False])
def test_rows_that_a_failed_step_was_to_forget_are_done_without(large: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(STAGED_ENTRIES, 0 if large else 1 << 16)
    model = nn.Linear(2, 1)

    def losses(model: Any, x: Tensor) -> Tensor:
        return torch.stack([model(x).square().mean(), (x.square().sum() * model.weight.square().sum()).sqrt()])

    mg = MultiGradient(model, losses, Fickle([0.5, 0.0, 0.5, 0.5]))
    good, bad = torch.ones(3, 2), torch.zeros(3, 2)  # the root has no gradient at 0
    rows = [[part.clone() for row in mg.rows() for part in row.values()] for _ in range(2) if mg.backward(good)]
    with pytest.raises(NonFiniteError):
        mg.backward(bad)  # keep = 0
    mg.backward(good)  # keep = 0.5, which a large model has nothing left of
    now = [part for row in mg.rows() for part in row.values()]
    first, second = rows  # the parameters stand still: g, and g + g / 2
    expected = first if large else [a + b / 2 for a, b in zip(first, second, strict=True)]
    assert mg.t == 3
    for found, wanted in zip(now, expected, strict=True):
        torch.testing.assert_close(found, wanted)
