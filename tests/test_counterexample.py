"""The biased-direction counterexample of FACTS.md through the library, with its known answers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from stimulus_moo import (
    Full,
    HeavyBall,
    MiniBatch,
    MinNorm,
    MultiGradient,
    ProjectedDescent,
    Recursive,
    Smoothed,
    Storm,
    Tracking,
    pareto_stationarity,
)
from tests.database import Point
from tests.reference import twins
from tests.reference.problems import Counterexample

PROBLEM = Counterexample()
SLOPES = torch.tensor(PROBLEM.slopes).T.contiguous()  # one row per sample, one column per objective
PARETO, BIASED = -3.1 / 3, 0.8 / 3
STEPS = 3000


def losses(model: Point, slopes: Tensor) -> Tensor:
    return (slopes * model.x + PROBLEM.curvature * model.x**2 / 2).mean(0)


def settle(
    estimator: object, weighting: object = None, *, steps: int, lr: object, momentum: float = 0.0, seed: int = 0
):
    model = Point(PROBLEM.start)
    multigradient = MultiGradient(model, losses, estimator, weighting)
    optimizer = HeavyBall(model.parameters(), lr=1.0, momentum=momentum)
    indices = np.random.default_rng(seed).integers(0, 3, steps)
    for t in range(steps):
        optimizer.param_groups[0]["lr"] = lr(t) if callable(lr) else lr
        multigradient.backward(SLOPES[indices[t] : indices[t] + 1])
        optimizer.step()
    return model


def test_mgd_reaches_the_pareto_point() -> None:
    model = settle(Full([SLOPES]), steps=60, lr=0.5)
    assert model.x.item() == pytest.approx(PARETO, abs=1e-12)
    assert pareto_stationarity(model, losses, [SLOPES]) < 1e-24


@pytest.mark.parametrize(("lr", "momentum"), [(0.5, 0.0), (0.3, 0.5)])
def test_stimulus_reaches_the_pareto_point(lr: float, momentum: float) -> None:
    model = settle(Recursive([SLOPES], period=10), steps=200, lr=lr, momentum=momentum)
    assert model.x.item() == pytest.approx(PARETO, abs=1e-10)


@pytest.mark.slow
def test_smgd_settles_at_the_biased_point() -> None:
    """``tests/reference`` has more seeds."""
    model = settle(MiniBatch(), steps=STEPS, lr=lambda t: 1 / (t + 1))
    assert model.x.item() == pytest.approx(BIASED, abs=0.03)  # sampling noise of 3000 steps


@pytest.mark.parametrize("method", ["cr-mogm", "moco", "moco+"])
def test_cr_mogm_and_moco_follow_the_twins_that_come_near_the_pareto_point(method: str) -> None:
    """``tests/reference`` shows where the twins go with these schedules in 3000 steps."""
    steps, near = 300, 1e-10  # the same arithmetic in another order
    schedule = {"beta": lambda t: (t + 1) ** -0.5, "gamma": 0.01}
    smoothed = {"lr": lambda t: 1 / (t + 1), "alpha": lambda t: 1 - 1 / (t + 1)}
    decaying = {"lr": lambda t: 0.5 * (t + 1) ** -0.75}
    parts = {
        "cr-mogm": (MiniBatch(), Smoothed(MinNorm(), smoothed["alpha"]), twins.cr_mogm, smoothed),
        "moco": (Tracking(schedule["beta"]), ProjectedDescent(gamma=0.01), twins.moco, decaying | schedule),
        "moco+": (Storm(schedule["beta"]), ProjectedDescent(gamma=0.01), twins.moco_plus, decaying | schedule),
    }
    estimator, weighting, twin, options = parts[method]
    model = settle(estimator, weighting, steps=steps, lr=options["lr"])
    batches = [np.array([j]) for j in np.random.default_rng(0).integers(0, 3, steps)]
    expected = twin(PROBLEM, PROBLEM.start, steps=steps, batches=batches, **options).x[-1, 0]
    assert model.x.item() == pytest.approx(expected, abs=near)
    assert abs(expected - BIASED) > 0.3  # already far from where SMGD settles
