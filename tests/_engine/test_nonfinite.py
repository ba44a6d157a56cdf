"""Numbers that go wrong: each case has one outcome, an error that says where or a step left out and counted."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from stimulus_moo import (
    METHODS,
    Fixed,
    HeavyBall,
    InvalidLosses,
    InvalidOption,
    MiniBatch,
    MinNorm,
    MultiGradient,
    NonFiniteError,
    Recursive,
    Storm,
    fit,
    kkt_residual,
)
from stimulus_moo._engine.nonfinite import MOST_IN_A_ROW
from tests.database import BATCHES as FOUR
from tests.database import COLUMNS, ESTIMATORS, STAGED_ENTRIES
from tests.harness import cut, data, differing, everything, jacobian, same, train, two_heads, two_losses

BATCHES = FOUR * 3
OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, weight_decay=0.1),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.05),
    "heavy ball": lambda p: HeavyBall(p, lr=0.05, momentum=0.5, weight_decay=0.1),
}


class Switch:
    """Losses with a fault that can be turned on."""

    def __init__(self, fault: Callable[[Tensor], Tensor], objective: int = 1) -> None:
        self.fault, self.objective, self.on = fault, objective, False

    def __call__(self, model: nn.Module, batch: Any) -> tuple[Tensor, ...]:
        losses = list(two_losses(model, batch))
        if self.on:
            losses[self.objective] = self.fault(losses[self.objective])
        return tuple(losses)


def broken_slope(loss: Tensor) -> Tensor:
    """Finite, with an infinite gradient."""
    return loss + (loss - loss.detach()).abs().sqrt()


FAULTS = {
    "nan loss": lambda loss: loss * torch.nan,
    "infinite loss": lambda loss: loss * torch.inf,
    "overflow": lambda loss: (loss * 1e200) ** 2,
    "gradient only": broken_slope,
}


@pytest.mark.parametrize(
    ("estimator", "fault"),
    [
        *((name, "gradient only") for name in ESTIMATORS),
        *(
            pytest.param(name, fault, marks=pytest.mark.slow)
            for name, info in ESTIMATORS.items()
            for fault in FAULTS
            if info.pairs and fault != "gradient only"
        ),
    ],
)
def test_a_skipped_step_leaves_model_optimizer_and_estimator_alone(estimator: str, fault: str) -> None:
    """The user's loop steps the optimizer whatever happens; the run is that of the good batches alone."""

    def run(skipping: bool) -> tuple[Any, Any, Any]:
        switch = Switch(FAULTS[fault])
        mg = MultiGradient(
            two_heads(nn.Dropout(0.2)), switch, ESTIMATORS[estimator].build(), on_nonfinite="skip", micro_batch=4
        )
        optimizer = OPTIMIZERS["adamw"](mg.objective.parameters)
        torch.manual_seed(7)
        for i, batch in enumerate(BATCHES[:5]):
            if skipping and i != 1:
                switch.on = True
                before = everything(mg)
                step = mg.backward(batch)
                optimizer.step()
                switch.on = False
                after = everything(mg)
                assert step.skipped
                assert step.losses.isnan().tolist() == step.weights.isnan().tolist() == [True, True]
                assert math.isnan(step.sq_norm)
                assert all(gradient is None for gradient in after["gradients"].values())
                for counts in (before["state"], after["state"]):
                    del counts["skipped"], counts["skipped_in_a_row"]
                assert set(differing(before, after)) <= {"gradients"}
            assert not mg.backward(batch).skipped
            optimizer.step()
        return everything(mg)["parameters"], optimizer.state_dict(), mg.skipped

    calm, disturbed = run(False), run(True)
    assert same(disturbed[:2], calm[:2])
    assert (calm[2], disturbed[2]) == (0, 4)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers_with_momentum_do_not_move_on_a_skipped_step(name: str) -> None:
    switch = Switch(FAULTS["nan loss"])
    mg = MultiGradient(two_heads(), switch, MiniBatch(), on_nonfinite="skip")
    optimizer = OPTIMIZERS[name](mg.objective.parameters)
    for batch in BATCHES[:3]:
        mg.backward(batch)
        optimizer.step()
    before, state = everything(mg)["parameters"], optimizer.state_dict()
    switch.on = True
    assert mg.backward(BATCHES[3]).skipped
    optimizer.step()
    assert same(everything(mg)["parameters"], before)
    assert same(optimizer.state_dict(), state)


@pytest.mark.parametrize("large", [False, True])
def test_one_bad_row_at_x_t_or_at_the_last_point_only(large: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of large models are updated in place and dropped when that fails."""
    if large:
        monkeypatch.setattr(STAGED_ENTRIES, 0)
    bad = (BATCHES[2][0].clone(), BATCHES[2][1])
    bad[0][3] = torch.nan  # one row of six
    mg = MultiGradient(two_heads(), two_losses, Storm(0.3), on_nonfinite="skip", micro_batch=2)
    train(mg, BATCHES[:2])
    rows = mg.rows()
    assert mg.backward(bad).skipped
    assert same(mg.rows(), [] if large else rows)
    last_point_only = Point()
    follow = MultiGradient(last_point_only, away_from_one, Storm(0.1), on_nonfinite="skip")
    follow.backward(torch.zeros(2))
    last_point_only.x.data.fill_(2.0)
    assert follow.backward(torch.ones(2)).skipped  # x_{t-1} = 1 has no slope there, x_t = 2 has
    assert not follow.backward(torch.zeros(2)).skipped
    assert (follow.t, follow.skipped) == (2, 1)


class Point(nn.Module):
    def __init__(self, value: float = 1.0, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.x = nn.Parameter(torch.full((1,), value, dtype=dtype))


def away_from_one(model: Point, shift: Tensor) -> tuple[Tensor, Tensor]:
    return model.x.sum(), (model.x - shift).abs().sqrt().mean()


def test_not_finite_in_an_anchor_batch() -> None:
    anchor = cut(data(24), 8)
    bad = anchor[2][0]
    kept = bad[1].clone()
    bad[1] = torch.inf
    mg = MultiGradient(two_heads(), two_losses, Recursive(anchor, 3), on_nonfinite="skip")
    for _ in range(3):
        step = mg.backward(BATCHES[0])
        assert step.skipped
        assert step.anchored
    assert (mg.t, mg.samples, mg.gradients) == (0, 0, 0)  # the next call anchors again
    bad[1] = kept
    assert mg.backward(BATCHES[0]).anchored
    assert (mg.t, mg.skipped) == (1, 3)


def test_a_run_that_is_nan_for_ever_ends() -> None:
    switch = Switch(FAULTS["nan loss"], objective=0)
    mg = MultiGradient(two_heads(), switch, MiniBatch(), on_nonfinite="skip")
    switch.on = True
    for _ in range(MOST_IN_A_ROW):
        assert mg.backward(BATCHES[0]).skipped
    before = everything(mg)
    with pytest.raises(NonFiniteError, match=r"objective 0 is nan at step 0.* Giving up after 10 consecutive"):
        mg.backward(BATCHES[0])
    assert differing(before, everything(mg)) == []
    switch.on = False
    mg.backward(BATCHES[0])
    switch.on = True
    assert mg.backward(BATCHES[0]).skipped  # a good step in between starts the count again


def test_every_skip_is_logged_with_step_and_objective(caplog: pytest.LogCaptureFixture) -> None:
    switch = Switch(FAULTS["infinite loss"])
    mg = MultiGradient(two_heads(), switch, MiniBatch(), on_nonfinite="skip")
    mg.backward(BATCHES[0])
    switch.on = True
    with caplog.at_level(logging.WARNING, "stimulus_moo"):
        mg.backward(BATCHES[1])
    assert "skipped, 1 so far: the loss of objective 1 is inf at step 1" in caplog.text


@pytest.mark.parametrize("value", ["ignore", None, True, "RAISE"])
def test_other_policies_are_refused(value: Any) -> None:
    with pytest.raises(InvalidOption, match=r"on_nonfinite must be one of 'raise', 'skip', found"):
        MultiGradient(two_heads(), two_losses, MiniBatch(), on_nonfinite=value)


def test_the_count_survives_in_the_state() -> None:
    switch = Switch(FAULTS["nan loss"])
    mg = MultiGradient(two_heads(), switch, Storm(0.3), on_nonfinite="skip")
    mg.backward(BATCHES[0])
    switch.on = True
    mg.backward(BATCHES[0])
    state = mg.state_dict()
    fresh = MultiGradient(two_heads(), two_losses, Storm(0.3))  # with another policy: options are no state
    fresh.load_state_dict(state)
    assert fresh.skipped == 1
    assert same(fresh.state_dict(), state)


def test_options_are_no_state() -> None:
    """A state of period 3 loads into period 5: that object's period holds from there on."""
    mg = MultiGradient(two_heads(), two_losses, Recursive(cut(COLUMNS, 12), 3))
    train(mg, BATCHES[:2])
    other = MultiGradient(two_heads(), two_losses, Recursive(cut(COLUMNS, 12), 5))
    other.load_state_dict(mg.state_dict())
    assert [other.backward(batch).anchored for batch in BATCHES[:5]] == [False, False, False, True, False]


# In low precision


def test_bfloat16_that_overflows() -> None:
    x = torch.ones(4, 1, dtype=torch.bfloat16)

    def losses(model: Point, batch: Tensor) -> Tensor:
        return torch.stack([(batch * model.x).mean(), (batch * model.x * 1e30).mean() ** 2])

    for policy, outcome in (("raise", None), ("skip", True)):
        model = Point(2.0, torch.bfloat16)
        mg = MultiGradient(model, losses, MiniBatch(), on_nonfinite=policy)
        if outcome is None:
            with pytest.raises(NonFiniteError, match="loss of objective 1 is inf at step 0"):
                mg.backward(x)
        else:
            assert mg.backward(x).skipped
        assert model.x.item() == 2.0
        assert model.x.grad is None


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_a_direction_too_large_for_its_type_is_refused(dtype: torch.dtype) -> None:
    """Each row fits; weighed and summed they do not."""
    most = torch.finfo(dtype).max
    model = Point(0.0, dtype)
    mg = MultiGradient(
        model, lambda m, b: (m.x.sum() * b.mean(), m.x.sum() * (b.mean() / 2)), MiniBatch(), Fixed([3.0, 1.0])
    )
    before = everything(mg)
    with pytest.raises(
        NonFiniteError, match=r"the direction is too large for .* at step 0, most of it from objective 0"
    ):
        mg.backward(torch.full((1,), most * 0.9, dtype=torch.float64).to(dtype))
    assert differing(before, everything(mg)) == []


# Numbers that are odd but sound


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_a_task_whose_gradient_is_exactly_zero_is_pareto_stationary(estimator: str) -> None:
    def losses(model: nn.Module, batch: Any) -> tuple[Tensor, Tensor]:
        left, right = two_losses(model, batch)
        return left, right * 0.0 + 3.0

    mg = MultiGradient(two_heads(), losses, ESTIMATORS[estimator].build())
    for batch in BATCHES[:4]:
        step = mg.backward(batch)
        assert step.weights.tolist() == [0.0, 1.0]
        assert step.sq_norm == 0.0
        assert all(p.grad is None or not p.grad.any() for p in mg.objective.parameters)


@pytest.mark.parametrize("scale", [1e8, 1e-8])
def test_tasks_scaled_far_apart_have_exact_weights(scale: float) -> None:
    def losses(model: nn.Module, batch: Any) -> tuple[Tensor, Tensor]:
        left, right = two_losses(model, batch)
        return left, scale * right

    mg = MultiGradient(two_heads(), losses, MiniBatch(), MinNorm())
    for batch in BATCHES[:4]:
        step = mg.backward(batch)
        rows = jacobian(mg.objective.model, losses, batch)
        assert kkt_residual(rows @ rows.T, step.weights) <= 1e-10
        assert math.isclose(float(step.weights.sum()), 1.0, rel_tol=1e-12)


def frozen_output(model: nn.Module, batch: Any) -> Tensor:
    """The model's output times zero: parameters are reached, and nothing they do matters."""
    return (model(batch[0]) * 0.0 + batch[1]).square().mean(0)


def unrelated(model: nn.Module, batch: Any) -> Tensor:
    return batch[1].square().mean(0)


@pytest.mark.parametrize("method", METHODS)
def test_a_constant_model_stays_where_it_is(method: str) -> None:
    x, y = torch.randn(16, 3), torch.randn(16, 2)
    model = nn.Linear(3, 2)
    before = model.weight.detach().clone()
    result = fit(model, frozen_output, (x, y), method=method, lr=0.1, steps=6)
    assert torch.equal(model.weight, before)
    assert result.stationarity == 0.0
    assert math.isclose(result.losses[0], y.square().mean(0)[0], rel_tol=1e-6)
    with pytest.raises(InvalidLosses, match="objective 0 depends on no trainable parameter"):
        fit(model, unrelated, (x, y), method=method, lr=0.1, steps=6)
    assert torch.equal(model.weight, before)


# In fit


def rows_with(bad: list[int]) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(40, 3, generator=generator), torch.randn(40, 2, generator=generator)
    x[bad] = torch.nan
    return x, y


def linear_losses(model: nn.Module, batch: Any) -> Tensor:
    return (model(batch[0]) - batch[1]).square().mean(0)


def linear() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(3, 2)


def test_fit_skips_counts_and_records() -> None:
    seen: list[Any] = []
    columns = rows_with([7])
    result = fit(
        linear(),
        linear_losses,
        columns,
        method="moco+",
        lr=0.05,
        batch_size=4,
        steps=20,
        evaluate_every=10,
        on_nonfinite="skip",
        callbacks=[lambda told: seen.append(told.record)],
    )
    assert result.skipped == 2  # the row comes once in ten batches
    marked = [record for record in result.history if "skipped" in record]
    assert len(marked) == 2
    assert all(math.isnan(value) for record in marked for value in (*record["losses"], record["sq_norm"]))
    assert [record["step"] for record in seen] == list(range(20)) == result.history["step"]
    assert result.history["skipped"].count(True) == 2
    assert (result.losses, math.isnan(result.stationarity)) == ([], True)  # all the data holds the row
    assert all(p.isfinite().all() for p in result.model.parameters())


def test_a_run_that_met_nan_is_kept_and_goes_on_with_skip(tmp_path: Any) -> None:
    options: dict[str, Any] = {"method": "smgd", "lr": 0.05, "batch_size": 4, "steps": 20, "checkpoint": tmp_path}
    columns = rows_with([7])
    good = [(torch.ones(2, 3), torch.ones(2, 2))]
    with pytest.raises(NonFiniteError) as caught:
        fit(linear(), linear_losses, columns, evaluation=good, **options)
    assert (tmp_path / f"checkpoint-{caught.value.step:09d}.pt").exists() == (caught.value.step > 0)
    resumed = fit(linear(), linear_losses, columns, evaluation=good, resume=True, on_nonfinite="skip", **options)
    options["checkpoint"] = None
    whole = fit(linear(), linear_losses, columns, evaluation=good, on_nonfinite="skip", **options)
    assert nan_equal(resumed, whole)
    assert same(dict(resumed.model.state_dict()), dict(whole.model.state_dict()))
    assert resumed.skipped == whole.skipped == 2


def nan_equal(one: Any, other: Any) -> bool:
    a, b = one.history.state_dict()["columns"], other.history.state_dict()["columns"]
    keys = b.keys() - {"seconds"}
    return all(torch.equal(a[key].nan_to_num(-1.0), b[key].nan_to_num(-1.0)) for key in keys)
