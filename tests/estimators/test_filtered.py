"""Filtered: the recursion as written, and an error estimate that is the error."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from stimulus_moo import Filtered, InvalidOption, MiniBatch, MultiGradient, Observation
from tests._engine.test_observation import X, Y, jacobian, losses, network


def seen(**values: Any) -> Observation:
    return Observation(step=1, samples=8, gradients=16, anchored=False, losses=torch.zeros(2), **values)


def test_the_rows_follow_the_recursion() -> None:
    model = network()
    mg = MultiGradient(model, losses, Filtered(probe=1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    expected = before = None
    gains = []
    for k in range(12):
        rows = slice(8 * k % 40, 8 * k % 40 + 8)
        now = torch.cat([p.detach().flatten() for p in model.parameters()])
        mg.backward((X[rows], Y[rows]))
        g = jacobian(now, rows)
        b = mg.estimator.gain
        gains.append(b)
        expected = g if expected is None else (1 - b) * (expected + g - jacobian(before, rows)) + b * g
        found = torch.stack([torch.cat([part.flatten() for part in row.values()]) for row in mg.rows()])
        assert torch.allclose(found, expected, rtol=1e-10, atol=1e-12)
        before = now
        optimizer.step()
    assert gains[0] == 1.0
    assert min(gains) < 0.9


def test_gain_and_error_are_those_of_the_filter() -> None:
    rule = Filtered()
    rule.update(0)
    rule.learn(seen(variance=4.0))
    assert rule.error == 4.0
    rule.drift, rule.error, rule.signal = 0.5, 1.0, 0.0
    rule.prepare(1.0)  # v = 0.5
    update = rule.update(1)
    b = (1.0 + 0.25) / (1.0 + 4.0)
    assert rule.gain == pytest.approx(b)
    assert (update.keep, update.now, update.before) == pytest.approx((1 - b, 1.0, b - 1))
    assert rule.error == pytest.approx((1 - b) ** 2 * 1.5 + b**2 * 4.0 + b * (1 - b) * 0.5)
    for other in (0.9 * b, 1.1 * b):  # it is the minimum
        assert (1 - other) ** 2 * 1.5 + other**2 * 4.0 + other * (1 - other) * 0.5 > rule.error


def test_one_point_while_it_pays_and_two_at_least_every_probe() -> None:
    rule = Filtered(probe=4)
    rule.update(0)
    rule.noise, rule.drift, rule.signal, rule.error = 1.0, 0.01, 100.0, 0.1
    rule.prepare(1.0)
    points = [bool(rule.update(t).before) for t in range(1, 13)]
    assert points == [False, False, False, True] * 3
    rule.signal = 0.0  # noise dominates
    assert rule.update(13).before


@pytest.mark.slow
def test_the_predicted_error_is_the_error() -> None:
    """Least squares with known noise: E follows the mean squared error of the estimate over many runs."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(4096, 3, generator=generator, dtype=torch.float64)
    targets = inputs.sum(1) + torch.randn(4096, generator=generator, dtype=torch.float64)

    def loss(model: Any, batch: tuple[Tensor, Tensor]) -> Tensor:
        return (model(batch[0])[:, 0] - batch[1]).square().mean().reshape(1)

    real, predicted = [], []
    for seed in range(8):
        generator = torch.Generator().manual_seed(seed)
        model = nn.Linear(3, 1, bias=False).double()
        nn.init.constant_(model.weight, 0.5)
        mg = MultiGradient(model, loss, Filtered(probe=1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
        for k in range(60):
            draw = torch.randint(4096, (16,), generator=generator)
            mg.backward((inputs[draw], targets[draw]))
            if k >= 30:
                (row,) = mg.rows()
                (exact,) = torch.autograd.grad(loss(model, (inputs, targets)).sum(), [model.weight])
                real.append(float((row["weight"] - exact).square().sum()))
                predicted.append(mg.estimator.error)
            optimizer.step()
    ratio = (sum(predicted) / len(predicted)) / (sum(real) / len(real))
    assert 0.5 < ratio < 2.0
    assert mg.estimator.error < 0.7 * mg.estimator.noise  # it was worth it


def test_batches_that_cannot_be_cut_are_taken_as_they_are() -> None:
    model = network()
    mg = MultiGradient(model, losses, Filtered())
    for k in range(4):
        mg.backward((X[k : k + 1], Y[k : k + 1]))
    assert mg.estimator.gain == 1.0
    assert (mg.samples, mg.gradients) == (4, 4)


@pytest.mark.parametrize("borders", [[5, 7], [6]])
def test_a_sample_is_never_cut_in_two(borders: list[int]) -> None:
    """Samples are groups of documents here, as ``batch_size`` says, and a half of the documents may end within one."""
    generator = torch.Generator().manual_seed(0)
    documents, grades = torch.randn(12, 3, generator=generator), torch.rand(12, 2, generator=generator)
    group = torch.bucketize(torch.arange(12), torch.tensor(borders), right=True)

    def listwise(m: nn.Module, b: Any) -> Tensor:
        x, y, g = b
        parts = [-(y[g == i].softmax(0) * m(x[g == i]).log_softmax(0)).sum(0) for i in g.unique()]
        return torch.stack(parts).mean(0)

    ends = []
    for estimator in (MiniBatch(), Filtered()):
        torch.manual_seed(0)
        model = nn.Linear(3, 2)
        mg = MultiGradient(model, listwise, estimator, batch_size=lambda b: len(b[2].unique()))
        step = mg.backward((documents, grades, group))
        ends.append((step.losses, model.weight.grad, mg.samples))
    (losses_of_one, gradient_of_one, count), (found, gradient, samples) = ends
    assert samples == count == len(borders) + 1
    assert torch.allclose(losses_of_one, found)
    assert torch.allclose(gradient_of_one, gradient, rtol=1e-4)


@pytest.mark.parametrize(("options", "word"), [({"probe": 0}, "probe"), ({"memory": 1.5}, "memory")])
def test_options_are_checked(options: dict[str, Any], word: str) -> None:
    with pytest.raises(InvalidOption, match=word):
        Filtered(**options)
