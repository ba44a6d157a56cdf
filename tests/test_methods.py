"""The table of methods: its rows, and what single rows become in special cases."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from stimulus_moo import METHODS, Adaptive, Filtered, Full, MiniBatch, Page, Recursive, Storm, Tracking
from tests import database
from tests.database import LR, MOMENTUM, Point, Run, TorchProblem

STEPS = 40


def test_the_table_has_the_rows_of_the_design() -> None:
    rows = {
        "mgd": (Full, "MinNorm", "SGD"),
        "smgd": (MiniBatch, "MinNorm", "SGD"),
        "moco": (Tracking, "ProjectedDescent", "SGD"),
        "moco+": (Storm, "ProjectedDescent", "SGD"),
        "cr-mogm": (MiniBatch, "Smoothed", "SGD"),
        "stimulus": (Recursive, "MinNorm", "SGD"),
        "stimulus-m": (Recursive, "MinNorm", "HeavyBall"),
        "stimulus+": (Recursive, "MinNorm", "SGD"),
        "stimulus-m+": (Recursive, "MinNorm", "HeavyBall"),
        "auto": (Adaptive, "Balanced", "Adam"),
        "stimulus-adam": (Recursive, "MinNorm", "Adam"),
        "page-moo": (Page, "MinNorm", "SGD"),
        "page-moo-m": (Page, "MinNorm", "HeavyBall"),
        "filtered": (Filtered, "MinNorm", "SGD"),
        "filtered-m": (Filtered, "MinNorm", "HeavyBall"),
        "vr-scalarisation": (Recursive, "Fixed", "SGD"),
        "scalarisation": (MiniBatch, "Fixed", "SGD"),
        "scalarisation-adam": (MiniBatch, "Fixed", "Adam"),
    }
    assert list(rows) == list(METHODS)
    for name, (estimator, weighting, step) in rows.items():
        run = Run(database.METHODS[name])
        assert type(run.multigradient.estimator) is estimator
        assert type(run.multigradient.weighting).__name__ == weighting
        assert type(run.optimizer).__name__ == step


def test_one_objective_on_full_batches_is_gradient_descent() -> None:
    run = Run(database.METHODS["mgd"], order=(0,)).run(STEPS)
    model = Point(run.problem.start)
    for _ in range(STEPS):
        (gradient,) = torch.autograd.grad(run.problem.losses(model, run.problem.columns)[0], [model.x])
        with torch.no_grad():
            model.x -= LR * gradient
    assert np.abs(run.path[-1] - model.x.detach().numpy()).max() < 1e-12  # the pieces of the pass are summed otherwise


def test_one_objective_heavy_ball_is_sgd_with_momentum() -> None:
    run = Run(database.METHODS["stimulus-m"], order=(0,), period=1).run(STEPS)
    model = Point(run.problem.start)
    optimizer = torch.optim.SGD(model.parameters(), lr=LR, momentum=MOMENTUM)
    for _ in range(STEPS):
        optimizer.zero_grad()
        run.problem.losses(model, run.problem.columns)[0].backward()
        optimizer.step()
    assert np.abs(run.path[-1] - model.x.detach().numpy()).max() < 1e-12


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("stimulus", {"period": 1}),
        ("stimulus+", {"period": 1, "epsilon": 1e-9}),  # so small that |N| = n
        ("page-moo", {"probability": 1.0}),
    ],
)
def test_anchors_at_every_step_are_mgd(name: str, changes: dict[str, float]) -> None:
    mgd = Run(database.METHODS["mgd"]).run(STEPS)
    run = Run(database.METHODS[name], **changes).run(STEPS)
    assert np.abs(mgd.path - run.path).max() < 1e-12
    assert run.multigradient.gradients == mgd.multigradient.gradients


def test_full_batches_without_noise_keep_the_filter_at_two_points() -> None:
    """The batch is all the data, so the difference is exact: the filtered path is that of full gradients."""
    whole = TorchProblem(batch_size=60)
    runs = [Run(database.METHODS[name]) for name in ("filtered", "mgd")]
    for run in runs:
        run.problem.batches = whole.batches
        run.run(STEPS)
    assert np.abs(runs[0].path - runs[1].path).max() < 1e-12
