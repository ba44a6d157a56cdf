"""Properties that every method must have, over one database of methods."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from stimulus_moo import METHODS, Fixed, Full, MiniBatch, MinNorm, MultiGradient, Page, Recursive, Storm
from tests.database import CASES, LR, MOMENTUM, PERIOD, Point, TorchProblem, Trained
from tests.harness import same

methods = pytest.mark.parametrize("name", CASES)
STEPS = 40


@methods
def test_permuting_objectives_permutes_weights_and_keeps_the_path(name: str) -> None:
    order = (2, 0, 1)
    plain = Trained(name, TorchProblem()).run(STEPS)
    permuted = Trained(name, TorchProblem(order)).run(STEPS)
    assert np.abs(plain.path - permuted.path).max() < 1e-10  # sums over objectives round in another order
    for a, b in zip(plain.steps, permuted.steps, strict=True):
        assert (a.weights[list(order)] - b.weights).abs().max() < 1e-8


class Single(TorchProblem):
    """Only the first objective."""

    def losses(self, model: Point, batch: tuple[Tensor, Tensor]) -> Any:
        return super().losses(model, batch)[:1]


@methods
def test_one_objective_is_the_single_objective_method(name: str) -> None:
    trained = Trained(name, Single()).run(STEPS)
    reference = Trained(name, Single())
    weighting = Fixed([1.0])
    reference.multigradient = MultiGradient(
        reference.model, reference.problem.losses, reference.multigradient.estimator, weighting
    )
    reference.run(STEPS)
    assert all(step.weights.tolist() == [1.0] for step in trained.steps)
    assert np.array_equal(trained.path, reference.path)


def test_one_objective_on_full_batches_is_gradient_descent() -> None:
    problem = Single()
    trained = Trained("mgd", problem).run(STEPS)
    model = Point(problem.start)
    for _ in range(STEPS):
        (gradient,) = torch.autograd.grad(problem.losses(model, problem.columns)[0], [model.x])
        with torch.no_grad():
            model.x -= LR * gradient
    assert np.abs(trained.path[-1] - model.x.detach().numpy()).max() < 1e-12


def test_one_objective_heavy_ball_is_sgd_with_momentum() -> None:
    problem = Single()
    trained = Trained("stimulus-m", problem, period=1).run(STEPS)
    model = Point(problem.start)
    optimizer = torch.optim.SGD(model.parameters(), lr=LR, momentum=MOMENTUM)
    for _ in range(STEPS):
        optimizer.zero_grad()
        problem.losses(model, problem.columns)[0].backward()
        optimizer.step()
    assert np.abs(trained.path[-1] - model.x.detach().numpy()).max() < 1e-12


@pytest.mark.parametrize("name", ["stimulus", "stimulus+"])
def test_period_one_is_mgd(name: str) -> None:
    changes = {"epsilon": 1e-9} if name == "stimulus+" else {}  # so small that |N| = n
    mgd = Trained("mgd", TorchProblem()).run(STEPS)
    recursive = Trained(name, TorchProblem(), period=1, **changes).run(STEPS)
    assert np.abs(mgd.path - recursive.path).max() < 1e-12
    assert recursive.multigradient.gradients == mgd.multigradient.gradients


@pytest.mark.parametrize("name", ["stimulus", "stimulus-m", "stimulus+", "stimulus-m+"])
def test_same_point_difference_is_zero(name: str) -> None:
    trained = Trained(name, TorchProblem())
    trained.multigradient.backward(trained.problem.batch(0))
    before = trained.multigradient.rows()
    step = trained.multigradient.backward(trained.problem.batch(1))  # no optimizer step in between
    assert not step.anchored
    assert same(before, trained.multigradient.rows())


@methods
@pytest.mark.parametrize("stop", [1, PERIOD - 1, PERIOD, PERIOD + 3, STEPS - 1])
def test_resume_equals_no_interruption(name: str, stop: int) -> None:
    straight = Trained(name, TorchProblem()).run(STEPS)
    first = Trained(name, TorchProblem()).run(stop)
    file = io.BytesIO()
    torch.save(first.state(), file)
    file.seek(0)
    state = torch.load(file, weights_only=True)
    second = Trained(name, TorchProblem())
    with torch.no_grad():
        second.model.x.copy_(state["x"])
    second.optimizer.load_state_dict(state["optimizer"])
    second.multigradient.load_state_dict(state["multigradient"])
    second.x = list(first.x)
    second.run(STEPS - stop)
    assert np.array_equal(second.path, straight.path)
    assert same(second.state(), straight.state())


class Broken(TorchProblem):
    """Raises at a chosen call of ``losses``."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0
        self.fail_at = -1

    def losses(self, model: Point, batch: tuple[Tensor, Tensor]) -> Tensor:
        self.calls += 1
        if self.calls == self.fail_at:
            raise RuntimeError("broken on purpose")
        return super().losses(model, batch)


@methods
@pytest.mark.parametrize("steps", [0, 3, PERIOD])
@pytest.mark.parametrize("call", [1, 2, 3])
def test_exception_inside_losses_changes_nothing(name: str, steps: int, call: int) -> None:
    problem = Broken()
    trained = Trained(name, problem).run(steps)
    before, gradient = trained.state(), trained.model.x.grad
    values = None if gradient is None else gradient.clone()
    random = torch.get_rng_state()
    problem.fail_at = problem.calls + call
    counted = problem.calls
    try:
        trained.multigradient.backward(problem.batch(steps))
    except RuntimeError as error:
        assert str(error) == "broken on purpose"  # noqa: PT017 (not every step has so many evaluations)
        assert same(before, trained.state())
        assert trained.model.x.grad is gradient
        assert values is None or torch.equal(trained.model.x.grad, values)
        assert torch.equal(random, torch.get_rng_state())
        problem.fail_at = -1
        trained.run(STEPS - steps)
        assert np.array_equal(trained.path, Trained(name, TorchProblem()).run(STEPS).path)
    else:
        assert problem.calls - counted < call  # this step has fewer evaluations than the one meant to fail


def test_some_step_of_every_method_fails_in_the_test_above() -> None:
    for name in CASES:
        problem = Broken()
        trained = Trained(name, problem)
        problem.fail_at = 1
        with pytest.raises(RuntimeError, match="on purpose"):
            trained.multigradient.backward(problem.batch(0))


def test_the_table_has_the_rows_of_the_design() -> None:
    rows = {
        "mgd": (Full, MinNorm, "SGD"),
        "smgd": (MiniBatch, MinNorm, "SGD"),
        "moco+": (Storm, None, "SGD"),
        "stimulus": (Recursive, MinNorm, "SGD"),
        "stimulus-m": (Recursive, MinNorm, "HeavyBall"),
    }
    for name, (estimator, weighting, step) in rows.items():
        trained = Trained(name, TorchProblem())
        assert type(trained.multigradient.estimator) is estimator
        assert weighting is None or type(trained.multigradient.weighting) is weighting
        assert type(trained.optimizer).__name__ == step
    assert {"page-moo", "vr-scalarisation", "scalarisation", "scalarisation-adam"} < set(METHODS)


def test_page_with_certain_anchors_is_mgd() -> None:
    problem = TorchProblem()
    model = Point(problem.start)
    multigradient = MultiGradient(model, problem.losses, Page([problem.columns], probability=1.0))
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    for t in range(STEPS):
        multigradient.backward(problem.batch(t))
        optimizer.step()
    mgd = Trained("mgd", problem).run(STEPS)
    assert np.abs(model.x.detach().numpy() - mgd.path[-1]).max() < 1e-12
