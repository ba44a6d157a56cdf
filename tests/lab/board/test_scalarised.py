"""The rivals' own rules against literal calculations."""

import math

import pytest
import torch

from stimulus_moo import NonFiniteError
from stimulus_moo.lab.board.problem import Made
from stimulus_moo.lab.board.scalarised import DynamicAverage, Famo, Relative, Scalarisation, Single, Uncertainty, train

LOSSES = torch.tensor([2.0, 0.5])


def test_mean_single_and_relative_losses():
    assert Scalarisation().combine(LOSSES) == 1.25
    assert Single(1).combine(LOSSES) == 0.5
    assert Relative([4.0, 0.5]).combine(LOSSES) == (2 / 4 + 0.5 / 0.5) / 2


def test_uncertainty_is_kendalls_sum_and_settles_at_the_logarithm_of_the_losses():
    rule = Uncertainty(2)
    assert math.isclose(rule.combine(LOSSES).item(), 0.5 * (2.0 + 0.5))
    with torch.no_grad():
        rule.variances.copy_(torch.tensor([1.0, -2.0]))
    expected = 0.5 * (math.exp(-1.0) * 2.0 + 1.0 + math.exp(2.0) * 0.5 - 2.0)
    assert math.isclose(rule.combine(LOSSES).item(), expected, rel_tol=1e-6)
    optimizer = torch.optim.SGD(rule.parameters(), lr=0.5)
    for _ in range(200):
        optimizer.zero_grad()
        rule.combine(LOSSES).backward()
        optimizer.step()
    assert torch.allclose(rule.variances.detach(), LOSSES.log(), atol=1e-4)  # where the gradient is zero


def test_dynamic_averages_follow_the_ratio_of_the_last_two_periods():
    rule = DynamicAverage(2, period=2)
    steps = [[4.0, 1.0], [2.0, 1.0], [1.0, 1.0], [2.0, 1.0]]
    for k, losses in enumerate(steps):
        assert rule.weights.tolist() == [0.5, 0.5], k
        rule.after(torch.tensor(losses), lambda: torch.zeros(2))
    ratios = [1.5 / 3.0, 1.0 / 1.0]
    powers = [math.exp(ratio / 2) for ratio in ratios]
    assert torch.allclose(rule.weights, torch.tensor([power / sum(powers) for power in powers]))
    assert math.isclose(rule.combine(LOSSES).item(), float(rule.weights @ LOSSES), rel_tol=1e-6)


def test_famo_equals_its_literal_rule():
    rule, after = Famo(2), torch.tensor([1.0, 0.45])
    w = torch.zeros(2, dtype=torch.float64)
    mean, square = torch.zeros(2, dtype=torch.float64), torch.zeros(2, dtype=torch.float64)
    for t in range(1, 6):
        f = LOSSES.double()
        z = torch.softmax(w, 0)
        c = 1.0 / sum(z[s] / f[s] for s in range(2))
        expected = c * sum(z[s] * math.log(f[s]) for s in range(2))
        assert math.isclose(rule.combine(LOSSES).item(), expected, rel_tol=1e-5, abs_tol=1e-6)
        delta = [math.log(LOSSES[s]) - math.log(after[s]) for s in range(2)]
        average = sum(z[s] * delta[s] for s in range(2))
        gradient = torch.stack([z[s] * (delta[s] - average) for s in range(2)]) + 0.01 * w  # softmax, weight decay
        mean, square = 0.9 * mean + 0.1 * gradient, 0.999 * square + 0.001 * gradient**2
        w = w - 0.025 * (mean / (1 - 0.9**t)) / ((square / (1 - 0.999**t)).sqrt() + 1e-8)
        rule.after(LOSSES, lambda: after)
    assert torch.allclose(rule.w.detach().double(), w, atol=1e-5)
    assert w[0] < w[1]  # the loss that fell less gets more weight


def toy(nan=False):
    model = torch.nn.Linear(1, 1, bias=False)
    data = torch.ones(8, 1)

    def losses(model, x):
        factor = math.nan if nan else 1.0
        return (model(x) - 1).square().mean() * factor, (model(x) + 1).square().mean()

    return Made(model, losses, data, lambda model, split: [])


def test_the_loop_is_adam_with_a_falling_learning_rate():
    made = toy()
    torch.nn.init.constant_(made.model.weight, 2.0)
    literal = torch.tensor([[2.0]], requires_grad=True)
    optimizer = torch.optim.Adam([literal], lr=0.1)
    for k in range(8):
        optimizer.param_groups[0]["lr"] = 0.1 * min(1.0, 2 * (1 - k / 8))
        optimizer.zero_grad()
        (((literal - 1) ** 2 + (literal + 1) ** 2) / 2).sum().backward()
        optimizer.step()
    assert train(made, Scalarisation(), lr=0.1, batch=2, passes=15, seed=0) == 16
    assert torch.allclose(made.model.weight, literal)


def test_a_loss_that_is_not_finite_names_its_objective():
    with pytest.raises(NonFiniteError, match="the loss is nan at step 0") as found:
        train(toy(nan=True), Scalarisation(), lr=0.1, batch=2, passes=4, seed=0)
    assert found.value.objective == 0
