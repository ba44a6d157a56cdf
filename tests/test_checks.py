"""The check of the first steps: every mistake is told once, with the fix, and nothing else changes."""

from __future__ import annotations

import random
import re
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from stimulus_moo import (
    Balanced,
    Fixed,
    Full,
    MiniBatch,
    MultiGradient,
    Page,
    Recursive,
    Safeguard,
    StimulusWarning,
    Storm,
    Tracking,
    fit,
)
from stimulus_moo._engine import loop_check

CHECKED = True  # tests/conftest.py leaves the check on

X = torch.randn(24, 4, generator=torch.Generator().manual_seed(0))


def linear() -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(4, 3)


def mean(model: nn.Module, x: Tensor) -> Tensor:
    return model(x).square().mean(0)


def summed(model: nn.Module, x: Tensor) -> Tensor:
    return model(x).square().sum(0)


def masked(model: nn.Module, x: Tensor) -> Any:
    mask = x[:, 0] > 0.3
    return model(x).square().mean(0)[0], model(x)[:, 1][mask].square().mean()


def masked_to_nothing(model: nn.Module, x: Tensor) -> Any:
    return model(x).square().mean(0)[0], model(x)[:1, 1][x[:1, 0] == X[0, 0]].square().mean()


def batch_in_place(model: nn.Module, x: Tensor) -> Tensor:
    x -= 0.1
    return mean(model, x)


def parameters_in_place(model: nn.Module, x: Tensor) -> Tensor:
    with torch.no_grad():
        model.weight.clamp_(-1.0, 1.0)
    return mean(model, x)


class Counting(nn.Linear):
    def __init__(self) -> None:
        super().__init__(4, 3)
        self.register_buffer("running", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.running += 1.0
        return super().forward(x)


def train(mg: MultiGradient, batches: Any, lr: float = 1e-3) -> None:
    optimizer = torch.optim.SGD(mg.objective.parameters, lr=lr)
    for batch in batches:
        mg.backward(batch)
        optimizer.step()


def told_by(call: Callable[[], Any]) -> list[str]:
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        call()
    return [str(one.message) for one in told]


def checked(losses: Any, estimator: Any = None, model: Any = None, batch: Any = X, **options: Any) -> list[str]:
    return MultiGradient(model or linear(), losses, estimator or Storm(0.1), **options).check(batch)


@pytest.mark.parametrize(
    ("losses", "options", "message"),
    [
        (summed, {}, "loss 0 is .* on a batch and .* on average over its halves.*it is a sum: divide it"),
        (summed, {"estimator": MiniBatch(), "micro_batch": 8}, "pieces of micro_batch cannot be combined"),
        (masked, {}, "loss 1 is .* for missing labels or padding pass counts="),
        (masked_to_nothing, {}, "loss 1 is NaN or infinite on one half of the batch.*pass counts="),
        (batch_in_place, {}, "losses changes the batch in place.*work on a copy"),
        (parameters_in_place, {}, "losses changes the parameter weight in place"),
        (mean, {"model": Counting()}, r"a forward pass changes the buffer running"),
        (
            mean,
            {"estimator": Recursive(DataLoader(X, batch_size=5, drop_last=True), 3), "batch": None},
            "drop_last=True and leaves out 4 of 24 samples",
        ),
    ],
)
def test_a_mistake_is_found_by_hand_and_told_once_by_the_first_step(
    losses: Any, options: dict[str, Any], message: str
) -> None:
    (found,) = checked(losses, **options)
    assert re.search(message, found)
    assert "https://" in found
    batch, model = options.get("batch", X), options.get("model") or linear()
    rest = {name: value for name, value in options.items() if name not in ("batch", "model", "estimator")}
    mg = MultiGradient(model, losses, options.get("estimator") or Storm(0.1), **rest)
    assert told_by(lambda: train(mg, [X.clone() if batch is None else batch.clone() for _ in range(2)])) == [found]


@pytest.mark.parametrize(
    ("losses", "options"),
    [
        (mean, {}),
        (summed, {"estimator": MiniBatch()}),  # one batch in one piece: any function of it is an objective
        (masked, {"counts": lambda x: [len(x), int((x[:, 0] > 0.3).sum())]}),
        (mean, {"model": nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.5))}),  # halves see other draws
        (mean, {"batch": X[:1]}),
        (mean, {"batch": X.tolist()}),  # the step refuses it
        (mean, {"batch": None}),
        (lambda model, x: "nothing", {}),
        (mean, {"estimator": Full(DataLoader(X, batch_size=5))}),
    ],
)
def test_no_mistake_is_found_where_there_is_none(losses: Any, options: dict[str, Any]) -> None:
    assert checked(losses, **options) == []


def test_a_check_leaves_everything_as_it_was() -> None:
    def losses(model: nn.Module, x: Tensor) -> Tensor:
        x -= torch.rand(()) + random.random() + np.random.rand()  # noqa: NPY002
        return mean(model, x)

    batch, model = X.clone(), Counting()
    mg = MultiGradient(model, losses, Storm(0.1))
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()  # noqa: NPY002
    assert len(mg.check(batch)) == 2
    after = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()  # noqa: NPY002
    assert torch.equal(before[0], after[0])
    assert before[1:] == after[1:]
    assert torch.equal(batch, X)
    assert (model.running.item(), mg.samples, mg.gradients, mg.passes, mg.t) == (0.0, 0, 0, 0, 0)
    assert all(parameter.grad is None for parameter in model.parameters())


ESTIMATORS: dict[str, Callable[[], Any]] = {
    "full": lambda: Full([X]),
    "mini-batch": MiniBatch,
    "recursive": lambda: Recursive([X], 3),
    "page": lambda: Page([X], 0.3, seed=1),
    "storm": lambda: Storm(0.2),
    "tracking": lambda: Tracking(0.2),
}


@pytest.mark.parametrize("reweigh", [1, 2])
@pytest.mark.parametrize("name", ESTIMATORS)
def test_paths_and_counters_do_not_depend_on_the_check(name: str, reweigh: int) -> None:
    if reweigh == 2 and name in ("recursive", "page"):
        pytest.skip("these keep weights between anchors only")

    def walk(check: bool) -> tuple[Any, ...]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 5), nn.Dropout(0.2), nn.Linear(5, 3))
        mg = MultiGradient(model, mean, ESTIMATORS[name](), check=check, reweigh=reweigh)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        for batch in X.split(4):
            mg.backward(batch)
            optimizer.step()
        path = torch.cat([p.detach().flatten() for p in model.parameters()])
        return path, torch.get_rng_state(), mg.samples, mg.gradients, mg.passes

    on, off = walk(check=True), walk(check=False)
    assert torch.equal(on[0], off[0])
    assert torch.equal(on[1], off[1])
    assert on[2:] == off[2:]


def loop(step: Callable[[Any, Any], None], calls: int = 6, **options: Any) -> list[str]:
    model = linear()
    mg = MultiGradient(model, mean, options.pop("estimator", Storm(0.1)), **options)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

    def run() -> None:
        for _ in range(calls):
            mg.backward(X)
            step(optimizer, model)

    return told_by(run)


def on_a_copy(optimizer: Any, model: Any) -> None:
    torch.optim.SGD([p.detach().clone() for p in model.parameters()], lr=0.1).step()


def zero_grad_first(optimizer: Any, model: Any, *, set_to_none: bool) -> None:
    optimizer.zero_grad(set_to_none=set_to_none)
    optimizer.step()


@pytest.mark.parametrize(
    ("step", "told"),
    [
        (lambda optimizer, model: None, "Call optimizer.step() after backward"),
        (on_a_copy, "with an optimizer on the parameters of this model"),
        (lambda o, m: zero_grad_first(o, m, set_to_none=True), "Call optimizer.step() after backward"),
        (lambda o, m: zero_grad_first(o, m, set_to_none=False), "is zero_grad called between backward and step"),
    ],
)
def test_parameters_that_do_not_move_are_told_once(step: Any, told: str) -> None:
    (message,) = loop(step)
    assert told in message


def test_gradient_accumulation_is_told_with_the_way() -> None:
    calls = iter(range(100))
    (message,) = loop(lambda optimizer, model: optimizer.step() if next(calls) % 4 == 3 else None, calls=12)
    assert "backward does not accumulate" in message
    assert "micro_batch=" in message


@pytest.mark.parametrize("option", [{}, {"check": False}])
def test_a_right_loop_a_warm_up_and_old_optimizers_are_not_told(option: dict[str, Any]) -> None:
    def by_data(optimizer: Any, model: Any) -> None:
        for parameter in model.parameters():
            parameter.data.sub_(0.05 * parameter.grad)  # leaves no trace in the version

    rates = iter([0.0, 0.0, 0.1, 0.1, 0.1, 0.1])

    def warm_up(optimizer: Any, model: Any) -> None:
        optimizer.param_groups[0]["lr"] = next(rates)
        optimizer.step()

    assert loop(by_data, **option) == []
    assert loop(warm_up, **option) == []
    if option:
        assert loop(lambda optimizer, model: None, **option) == []


def test_a_loss_with_a_zero_gradient_is_told() -> None:
    def losses(model: nn.Module, x: Tensor) -> Any:
        return (model(x)[:, 0] - 1.0).square().mean(), model.weight[1].square().sum()

    model = linear()
    with torch.no_grad():
        model.weight[1] = 0.0
    with pytest.warns(StimulusWarning, match=r"gradient of loss 1 is exactly zero at step 0.*Balanced\(\).*normalise"):
        MultiGradient(model, losses, MiniBatch()).backward(X)
    step = MultiGradient(model, losses, MiniBatch(), Balanced()).backward(X)
    assert step.sq_norm > 0


def test_a_loss_that_is_ignored_for_long_is_told() -> None:
    def losses(model: nn.Module, x: Tensor) -> Any:
        # parallel gradients of lengths 1 and 1000: the shorter one has all the weight
        return 1.0 + 1e-3 * model.weight[0, 0], 1000.0 + model.weight[0, 0]

    mg = MultiGradient(linear(), losses, MiniBatch())
    (message,) = told_by(lambda: train(mg, [X[:2]] * 530))
    assert re.search(r"loss 1 has had weight 0 for 512 steps and stays at 1000.*Balanced\(\)", message)


def test_fixed_weights_of_zero_are_meant() -> None:
    train(MultiGradient(linear(), mean, MiniBatch(), Fixed([1.0, 0.0, 0.0])), [X[:2]] * 530)


def test_a_guarded_loop_and_fit_are_checked_too() -> None:
    model = linear()
    mg, optimizer = MultiGradient(model, summed, Storm(0.1)), torch.optim.SGD(model.parameters(), lr=1e-4)
    Safeguard(optimizer, mg)
    with pytest.warns(StimulusWarning, match="it is a sum"):
        mg.backward(X)
    with pytest.warns(StimulusWarning, match="it is a sum"):
        fit(linear(), summed, X, method="stimulus", lr=1e-4, steps=2)
    fit(linear(), summed, X, method="stimulus", lr=1e-4, steps=2, check=False)


def test_only_the_first_steps_are_compared(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    caplog.set_level("INFO", logger="stimulus_moo")
    looked: list[int] = []
    monkeypatch.setattr(loop_check, "_fingerprint", lambda parameters: looked.append(1) or ([], []))
    mg = MultiGradient(linear(), mean, Storm(0.1))
    told_by(lambda: train(mg, [X] * 20))
    assert len(looked) <= 2 * loop_check.FIRST_STEPS
    assert mg._loop_check is not None
    assert not mg._loop_check.due
    assert len([record for record in caplog.records if "checked the first batch in" in record.message]) == 1
