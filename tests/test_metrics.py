"""Stationarity, losses over data and the estimator's error, against numbers computed by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from stimulus_moo import (
    InvalidBatch,
    InvalidOption,
    MiniBatch,
    MultiGradient,
    Recursive,
    estimator_error,
    measure,
    pareto_stationarity,
)
from tests.database import Point, TorchProblem
from tests.reference import twins


def test_stationarity_is_the_twins_min_norm_value() -> None:
    problem = TorchProblem()
    model = Point(problem.start)
    rows = problem.numpy.full_gradients(problem.start)
    direction = twins.min_norm(rows) @ rows
    found = pareto_stationarity(model, problem.losses, [problem.columns])
    assert found == pytest.approx(float(direction @ direction), rel=1e-12)
    assert isinstance(found, float)


def test_ragged_batches_count_by_their_size() -> None:
    problem = TorchProblem()
    model = Point(problem.start)
    whole = measure(model, problem.losses, [problem.columns])
    cuts = [tuple(c[a:b] for c in problem.columns) for a, b in ((0, 7), (7, 50), (50, 60))]
    for options in ({}, {"micro_batch": 4}):
        ragged = measure(model, problem.losses, cuts, **options)
        assert ragged.samples == 60
        assert np.allclose(ragged.losses, whole.losses, rtol=1e-13)
        assert ragged.stationarity == pytest.approx(whole.stationarity, rel=1e-10)
    assert np.allclose(whole.losses, problem.numpy.full_losses(problem.start), rtol=1e-13)


def test_measuring_leaves_no_trace() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 2))
    x = torch.randn(8, 3)
    model[0].weight.grad = torch.ones(4, 3)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    random = torch.get_rng_state()
    found = measure(model, lambda m, b: m(b).square().mean(0), [x[:4], x[4:]])
    assert found.samples == 8
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert torch.equal(model[0].weight.grad, torch.ones(4, 3))
    assert model[3].weight.grad is None
    assert torch.equal(random, torch.get_rng_state())


def test_no_batches_is_an_error() -> None:
    with pytest.raises(InvalidBatch, match="no batches"):
        measure(nn.Linear(1, 1), lambda m, b: m(b).mean(0), [])


def test_estimator_error_is_the_distance_to_the_full_gradient() -> None:
    problem = TorchProblem()
    model = Point(problem.start)
    multigradient = MultiGradient(model, problem.losses, Recursive([problem.columns], 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for t in range(4):
        multigradient.backward(problem.batch(t))
        if t < 3:
            optimizer.step()
    rows = torch.stack([row["x"] for row in multigradient.rows()]).numpy()
    by_hand = ((rows - problem.numpy.full_gradients(model.x.detach().numpy())) ** 2).sum(1)
    assert np.allclose(estimator_error(multigradient, [problem.columns]).numpy(), by_hand, rtol=1e-9)
    assert by_hand.min() > 1e-8


def test_estimator_error_needs_rows() -> None:
    model = nn.Linear(2, 2)
    multigradient = MultiGradient(model, lambda m, x: m(x).square().mean(0), MiniBatch())
    multigradient.backward(torch.ones(3, 2))
    with pytest.raises(InvalidOption, match="MiniBatch"):
        estimator_error(multigradient, [torch.ones(3, 2)])


def test_batch_size_decides_the_weight_of_a_batch() -> None:
    model = Point([2.0])

    def losses(model: Point, batch: dict[str, Tensor]) -> tuple[Tensor]:
        return ((model.x * batch["slope"]).sum(),)

    batches = [{"slope": torch.tensor(1.0), "count": 3}, {"slope": torch.tensor(5.0), "count": 1}]
    found = measure(model, losses, batches, batch_size=lambda batch: batch["count"])
    assert found.losses == [4.0]  # (3 * 2 + 1 * 10) / 4
    assert found.stationarity == pytest.approx(4.0)  # the mean slope, 2, squared
