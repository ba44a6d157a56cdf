"""Every method of the table against its literal numpy twin, with identical batches, in every engine."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from stimulus_moo import MultiGradient, ProjectedDescent, Storm, Update
from tests.database import ENGINES, LR, METHODS, MOCO, PERIOD, STEPS, Point, Run, TorchProblem
from tests.properties import TWIN_TOLERANCE, check_equals_twin, relative, twin_of

#: with three objectives, "auto" is "batched"; compiled functions do not update rows in place
TWIN_ENGINES = [
    pytest.param("rowwise", marks=pytest.mark.slow),
    "batched",
    pytest.param("rowwise, in place", marks=pytest.mark.slow),
]

#: one method for each estimator: compiling takes longer than the steps
COMPILED = (
    "mgd",
    "smgd",
    "moco",
    "moco+",
    "stimulus-m",
    "stimulus-m+",
    "page-moo-m",
)  # filtered-m compares halves, which are not compiled


@pytest.mark.slow
@pytest.mark.parametrize("name", COMPILED)
def test_compiled_trajectory_and_counters_equal_twin(name: str) -> None:
    check_equals_twin(METHODS[name], ENGINES["compiled"], 10 * PERIOD)


@pytest.mark.parametrize("engine", TWIN_ENGINES)
@pytest.mark.parametrize("name", METHODS)
def test_trajectory_and_counters_equal_twin(name: str, engine: str) -> None:
    check_equals_twin(METHODS[name], ENGINES[engine], STEPS if engine == "rowwise" else 10 * PERIOD)


@pytest.mark.parametrize("name", ["filtered", "filtered-m"])
def test_filter_equals_twin_where_a_second_point_does_not_always_pay(name: str) -> None:
    """Batches of 8 are so noisy that two points pay from the start; with 32 of 60 samples they often do not."""
    info, problem = METHODS[name], TorchProblem(batch_size=32)
    twin = info.twin(problem.numpy, problem.start, steps=100, lr=LR, batches=problem.batches, **info.twin_options)
    run = Run(info)
    run.problem.batches = problem.batches
    run.run(100)
    assert relative(run.path, twin.x) < TWIN_TOLERANCE
    assert run.multigradient.gradients == twin.gradients[-1]
    points = np.diff(twin.gradients) // 32
    assert 20 < (points == 1).sum() < 80


def test_twins_differ_from_each_other() -> None:
    """The tolerance would be empty if all methods took the same path."""
    ends = {name: twin_of(info).x[40] for name, info in METHODS.items()}
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
    model = Point(problem.start)
    estimator = Uncorrected(MOCO["beta"])
    multigradient = MultiGradient(model, problem.losses, estimator, ProjectedDescent(MOCO["gamma"], MOCO["rho"]))
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    path = [model.x.detach().numpy().copy()]
    for t in range(STEPS):
        multigradient.backward(problem.batch(t))
        optimizer.step()
        path.append(model.x.detach().numpy().copy())
    assert relative(np.array(path), twin_of(METHODS["moco+"]).x) > 1e-3
