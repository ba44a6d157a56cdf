"""Lemma 1 of the paper: the estimator's error stays below its bound on average, and the bound is not empty."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from stimulus_moo import MultiGradient, Recursive, estimator_error
from tests.database import Point
from tests.reference.problems import QuadraticSum

PERIOD, BATCH, REPEATS = 12, 4, 60
LR = 0.05


@pytest.mark.slow
def test_estimator_error_obeys_lemma_1_on_average() -> None:
    problem = QuadraticSum(seed=0, n=64, dimension=4, objectives=2)
    # One row per sample, one column per objective.
    hessians = torch.tensor(problem.hessians).transpose(0, 1).contiguous()
    centres = torch.tensor(problem.centres).transpose(0, 1).contiguous()
    data = (hessians, centres)

    def losses(model: Point, batch: tuple[Tensor, Tensor]) -> Tensor:
        offset = model.x - batch[1]
        return 0.5 * torch.einsum("nsi,nsij,nsj->ns", offset, batch[0], offset).mean(0)

    errors = np.zeros((REPEATS, PERIOD, 2))
    bounds = np.zeros((REPEATS, PERIOD))
    for repeat in range(REPEATS):
        draw = np.random.default_rng(repeat)
        model = Point(np.full(4, 3.0))
        multigradient = MultiGradient(model, losses, Recursive([data], PERIOD))
        optimizer = torch.optim.SGD(model.parameters(), lr=LR)
        travelled, last = 0.0, model.x.detach().clone()
        for t in range(PERIOD):
            travelled += float((model.x.detach() - last).square().sum())
            last = model.x.detach().clone()
            chosen = torch.as_tensor(draw.integers(0, problem.n, BATCH))  # independent draws, as the lemma assumes
            multigradient.backward(tuple(column[chosen] for column in data))
            errors[repeat, t] = estimator_error(multigradient, [data]).numpy()
            bounds[repeat, t] = problem.L**2 / BATCH * travelled
            optimizer.step()
    mean_error, mean_bound = errors.mean(0), bounds.mean(0)
    assert mean_error[0].max() < 1e-24  # the anchor is exact
    assert (mean_error[1:] <= mean_bound[1:, None]).all()
    # The bound is within two orders of the truth, so that a broken estimator would break it.
    assert (mean_error[1:] >= 1e-3 * mean_bound[1:, None]).all()
