"""Stationarity, losses over data and the estimator's error, against numbers computed by hand."""

from __future__ import annotations

import math
from itertools import product

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
    delta_m,
    estimator_error,
    hypervolume,
    mean_rank,
    measure,
    paired_test,
    pareto_stationarity,
    relative_changes,
    worst_task,
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


def test_delta_m_worst_task_and_ranks_against_literal_sums() -> None:
    values, baseline, higher = [0.9, 0.6, 3.0], [1.0, 0.5, 2.0], [True, True, False]
    changes = [100 * (1.0 - 0.9) / 1.0, -100 * (0.6 - 0.5) / 0.5, 100 * (3.0 - 2.0) / 2.0]
    assert relative_changes(values, baseline, higher=higher) == pytest.approx(changes)
    assert delta_m(values, baseline, higher=higher) == pytest.approx(sum(changes) / 3)
    assert worst_task(values, baseline, higher=higher) == pytest.approx(50.0)
    points = relative_changes([0.1], [0.0], higher=[False], scale=[1.0])
    assert points == pytest.approx([10.0])
    assert mean_rank([[1.0, math.nan], [2.0, 5.0]], higher=[False, True]) == [1.5, 1.5]  # NaN is last


def test_hypervolume_is_the_union_of_boxes() -> None:
    pytest.importorskip("moocore")
    assert hypervolume([[0.0, 0.0]], [2.0, 3.0]) == pytest.approx(6.0)
    assert hypervolume([[0.0, 1.0], [1.0, 0.0], [1.5, 1.5]], [2.0, 2.0]) == pytest.approx(3.0)
    assert hypervolume([[3.0, 0.0]], [2.0, 2.0]) == 0


def test_the_paired_test_counts_sign_flips() -> None:
    first, second = [1.0, 2.0, 4.0], [0.0, 0.0, 5.0]
    differences = [1.0, 2.0, -1.0]
    sums = [sum(s * d for s, d in zip(signs, differences, strict=True)) for signs in product((1, -1), repeat=3)]
    more, less = (sum(flip * total >= flip * sum(differences) for total in sums) / 8 for flip in (1, -1))
    assert paired_test(first, second) == pytest.approx(min(1.0, 2 * min(more, less)))
    assert paired_test([1.0, 2.0], [1.0, 2.0]) == 1.0


def test_wrong_comparisons_are_refused() -> None:
    with pytest.raises(InvalidOption, match=r"found lengths \{'values': 1, 'baseline': 2, 'higher': 1, 'scale': 1\}"):
        delta_m([1.0], [1.0, 2.0], higher=[True])
    with pytest.raises(InvalidOption, match=r"baseline\[1\] must not be 0, .* pass scale\[1\]=1\.0"):
        worst_task([1.0, 1.0], [1.0, 0.0], higher=[True, True])
    with pytest.raises(InvalidOption, match=r"table needs rows of 2 numbers, as higher has, found \[1\]"):
        mean_rank([[1.0]], higher=[True, False])
    with pytest.raises(InvalidOption, match="at least 2, found 1, 1"):
        paired_test([1.0], [2.0])
