"""Every method of the table against its literal numpy twin, with identical batches."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from stimulus_moo import MultiGradient, ProjectedDescent, Storm, Update
from tests.database import CASES, LR, MOCO, STEPS, Point, TorchProblem, Trained
from tests.reference import twins

TOLERANCE = 1e-9  # the paths are the same arithmetic in another order; rounding grows along 200 nonconvex steps


def relative(path: np.ndarray, reference: np.ndarray) -> float:
    return float(np.abs(path - reference).max() / np.abs(reference).max())


def reference(name: str, problem: TorchProblem) -> twins.Trajectory:
    case = CASES[name]
    draw = {"draw": problem.drawer()} if case.draws else {}
    return case.twin(
        problem.numpy, problem.start, steps=STEPS, lr=LR, batches=problem.batches, **case.twin_options, **draw
    )


@pytest.mark.parametrize("engine", ["rowwise", "streamed", "batched", "compiled"])
@pytest.mark.parametrize("name", CASES)
def test_trajectory_equals_twin(name: str, engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = TorchProblem()
    twin = reference(name, problem)
    # what the compiler is given is the same whatever it makes of it; tests/engines compiles in earnest
    monkeypatch.setattr("stimulus_moo._engine.compiled.BACKEND", "aot_eager")
    if engine == "streamed":  # rows that are updated in place, a parameter at a time
        monkeypatch.setattr("stimulus_moo._engine.store.STAGED_ENTRIES", 0)
    trained = Trained(name, problem, engine="rowwise" if engine == "streamed" else engine).run(STEPS)
    assert relative(trained.path, twin.x) < TOLERANCE
    # The path says little once it is stationary: before that, the weights must agree too.
    early = np.array([step.weights.numpy() for step in trained.steps[:50]])
    assert np.abs(early - twin.weights[:50]).max() < TOLERANCE
    norms = np.array([float(step.sq_norm) for step in trained.steps[:50]])
    assert relative(norms, (twin.d[:50] ** 2).sum(1)) < TOLERANCE


@pytest.mark.parametrize("name", CASES)
def test_counters_equal_twin(name: str) -> None:
    problem = TorchProblem()
    twin = reference(name, problem)
    trained = Trained(name, problem).run(STEPS)
    assert trained.multigradient.samples == twin.samples[-1]
    assert trained.multigradient.gradients == twin.gradients[-1]


def test_twins_differ_from_each_other() -> None:
    """The tolerance above would be empty if all methods walked the same path."""
    problem = TorchProblem()
    ends = {name: reference(name, problem).x[40] for name in CASES}
    names = list(ends)
    distances = [np.abs(ends[a] - ends[b]).max() for i, a in enumerate(names) for b in names[:i]]
    assert min(distances) > 1e-5


class Uncorrected(Storm):
    """The public MoCo+ code: the correction at the last point is never applied."""

    def update(self, t: int) -> Update:
        right = super().update(t)
        return Update(keep=right.keep, now=right.now - right.keep, before=0.0) if t else right


def test_moco_plus_without_its_correction_fails_the_twin() -> None:
    problem = TorchProblem()
    twin = reference("moco+", problem)
    model = Point(problem.start)
    estimator = Uncorrected(MOCO["beta"])
    multigradient = MultiGradient(model, problem.losses, estimator, ProjectedDescent(MOCO["gamma"], MOCO["rho"]))
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    path = [model.x.detach().numpy().copy()]
    for t in range(STEPS):
        multigradient.backward(problem.batch(t))
        optimizer.step()
        path.append(model.x.detach().numpy().copy())
    assert relative(np.array(path), twin.x) > 1e-3
