"""Statements of docs/theory.md that are not in the paper, in numbers; those on Ray and Bounded have their own file."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from stimulus_moo import Balanced, Full, MiniBatch, MultiGradient, Recursive, min_norm_weights
from stimulus_moo._engine import sketch
from tests.database import Point

Array = np.ndarray[Any, np.dtype[np.float64]]


def shortest(rows: Array) -> tuple[Array, Array]:
    """Return the min-norm weights and direction."""
    weights = min_norm_weights(torch.from_numpy(rows @ rows.T)).numpy()
    return weights, weights @ rows


class Waves:
    """f_sj(x) = 1 - cos(a_sj . x + b_sj): nonconvex, ||grad|| <= max ||a|| = M, L = max ||a||^2."""

    def __init__(self, seed: int, objectives: int = 3, n: int = 40, dimension: int = 4) -> None:
        draw = np.random.default_rng(seed)
        self.a = draw.normal(size=(n, objectives, dimension))
        self.b = draw.uniform(-1.0, 1.0, size=(n, objectives))
        self.M = float(np.linalg.norm(self.a, axis=2).max())
        self.L = self.M**2
        self.data = torch.from_numpy(self.a), torch.from_numpy(self.b)
        self.start = draw.normal(size=dimension)

    def losses(self, model: Point, batch: tuple[Tensor, Tensor]) -> Tensor:
        return (1.0 - torch.cos(batch[0] @ model.x + batch[1])).mean(0)

    def values(self, x: Array) -> Array:
        return np.asarray((1.0 - np.cos(self.a @ x + self.b)).mean(0))

    def gradients(self, x: Array) -> Array:
        return np.asarray((np.sin(self.a @ x + self.b)[:, :, None] * self.a).mean(0))


# Common descent in a metric


@pytest.mark.parametrize("preference", [None, [1.0, 5.0, 0.5, 2.0]])
def test_balanced_weights_share_the_decrease_by_preference_and_length(preference: list[float] | None) -> None:
    draw, active = np.random.default_rng(0), 0
    for _ in range(50):
        rows, scaling = draw.normal(size=(4, 6)) * 10.0 ** draw.uniform(-3, 3, (4, 1)), 10.0 ** draw.uniform(-2, 2, 6)
        gramian = rows / scaling @ rows.T
        weights = Balanced(preference=preference)(torch.from_numpy(gramian)).numpy()
        lengths = np.sqrt(np.diag(gramian))
        p = np.ones(4) if preference is None else np.array(preference)
        p = p / np.exp(np.log(p).mean())
        value = weights @ gramian @ weights
        ratio = gramian @ weights / (p * lengths / np.exp(np.log(lengths).mean()) * value)
        assert ratio.min() > 1.0 - 1e-9
        np.testing.assert_allclose(ratio[weights > 0], 1.0, rtol=1e-9)
        active += int((weights > 0).sum())
    assert 50 < active < 200  # some, but not all


# Kept weights


def test_kept_weights_are_off_by_at_most_the_distance_gone() -> None:
    draw, tightest = np.random.default_rng(1), math.inf
    for seed in range(60):
        problem, x = Waves(seed), Waves(seed).start
        weights, _ = shortest(problem.gradients(x))
        moved = x + draw.normal(size=4) * 10.0 ** draw.uniform(-3, 0)
        distance = problem.L * float(np.linalg.norm(moved - x))
        rows = problem.gradients(moved)
        kept = weights @ rows
        excess = float(np.linalg.norm(kept) - np.linalg.norm(shortest(rows)[1]))
        assert -1e-12 < excess <= 2.0 * distance
        length = float(np.linalg.norm(kept))
        bound = length**2 - distance * (3.0 * length + np.linalg.norm(problem.gradients(x), axis=1))
        assert (rows @ kept >= bound - 1e-12).all()
        tightest = min(tightest, float(((rows @ kept - bound) / distance).min()))
    assert tightest < 20.0  # the bound is not empty


def test_kept_weights_may_jump_where_the_direction_does_not() -> None:
    for size in (1e-3, -1e-3):
        weights, direction = shortest(np.array([[1.0, 0.0], [1.0 + size, 0.0]]))
        np.testing.assert_allclose(weights, [1.0, 0.0] if size > 0 else [0.0, 1.0])
        np.testing.assert_allclose(direction, [1.0, 0.0], atol=1.1e-3)


def test_the_min_norm_direction_is_continuous_with_exponent_one_half() -> None:
    draw = np.random.default_rng(4)
    for seed in range(60):
        problem, x = Waves(seed), Waves(seed).start
        moved = x + draw.normal(size=4) * 10.0 ** draw.uniform(-4, 0)
        here, there = (shortest(problem.gradients(point))[1] for point in (x, moved))
        h = problem.L * float(np.linalg.norm(moved - x))
        bound = h + 2.0 * math.sqrt(h * max(h, float(np.linalg.norm(here))))
        assert np.linalg.norm(here - there) <= bound
    for h in (1e-2, 1e-4, 1e-6):  # and not with a larger one
        here, there = (shortest(np.array([[1.0, 0.0], [1.0 - e, math.sqrt(h)]]))[1] for e in (0.0, h))
        assert np.linalg.norm(here - there) == pytest.approx(math.sqrt(h), rel=0.1)


@pytest.mark.parametrize("steps", [1, 7, 40])
def test_stationarity_of_strongly_convex_losses_contracts_whatever_the_period(steps: int) -> None:
    draw, mu = np.random.default_rng(3), 0.05
    turns = [np.linalg.qr(draw.normal(size=(4, 4)))[0] for _ in range(3)]
    hessians = np.stack([turn * np.geomspace(mu, 1.0, 4) @ turn.T for turn in turns])  # L = 1
    curvature, centres = torch.from_numpy(hessians), torch.from_numpy(draw.normal(size=(3, 4)))

    def losses(model: Point, _: Tensor) -> Tensor:
        offset = model.x - centres
        return 0.5 * torch.einsum("si,sij,sj->s", offset, curvature, offset)

    model = Point(np.full(4, 3.0))
    mg = MultiGradient(model, losses, MiniBatch(), reweigh=steps)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    stationarity = []
    for _ in range(80):
        offset = model.x.detach().numpy() - centres.numpy()
        stationarity.append(np.linalg.norm(shortest(np.einsum("sij,sj->si", hessians, offset))[1]))
        mg.backward(torch.zeros(1))
        optimizer.step()
    bound = stationarity[0] * (1.0 - mu) ** np.arange(80)
    assert (np.array(stationarity) <= bound * (1.0 + 1e-9)).all()
    assert stationarity[-1] > 1e-6 * bound[-1]  # the bound is not empty


@pytest.mark.parametrize("differences", [False, True], ids=["full gradients", "recursive differences"])
def test_a_period_of_kept_weights_decreases_every_nonconvex_loss_up_to_the_stated_term(differences: bool) -> None:
    problem, period, periods = Waves(5), 8, 12
    eta = 1.0 / (4.0 * problem.L * period)
    model, draw = Point(problem.start), np.random.default_rng(0)
    estimator = Recursive([problem.data], period) if differences else Full([problem.data])
    mg = MultiGradient(model, problem.losses, estimator, reweigh="anchor" if differences else period)
    optimizer = torch.optim.SGD(model.parameters(), lr=eta)
    points, solved = [], []
    for _ in range(period * periods + 1):
        points.append(model.x.detach().numpy().copy())
        chosen = torch.as_tensor(draw.integers(0, 40, 2))
        solved.append(mg.backward(tuple(column[chosen] for column in problem.data)).reweighed)
        optimizer.step()
    assert solved == [t % period == 0 for t in range(period * periods + 1)]
    m = np.array([np.linalg.norm(shortest(problem.gradients(x))[1]) for x in points])
    starts = m[:-1:period]
    values = np.array([problem.values(x) for x in points[::period]])
    extra = (eta * period) ** 3 * problem.L**2 * problem.M**2
    assert (values[1:] <= values[:-1] - 0.25 * eta * period * starts[:, None] ** 2 + extra).all()
    fall = values[0] - 0.0  # the losses are not negative
    steps = period * periods
    assert ((starts**2).mean() <= 4.0 * fall / (eta * steps) + 4.0 * extra / (eta * period)).all()
    assert (m[:-1] <= 1.5 * np.repeat(starts, period)).all()


# Sketched Gramians


def sketched(rows: Tensor, monkeypatch: pytest.MonkeyPatch, seed: int, width: int, signs: int) -> Tensor:
    for name, value in {"WIDTH": width, "SIGNS": signs, "_SEED": seed}.items():
        monkeypatch.setattr(sketch, name, value)
    found = sketch.Sketch([torch.zeros(rows.shape[1], dtype=torch.float64)], len(rows), [True])
    for s, row in enumerate(rows):
        found.add(s, [row], 1.0)
    return found.gramian()


def beta(x: Tensor, y: Tensor, width: int) -> float:
    padded = [torch.nn.functional.pad(v.square(), (0, -len(v) % width)).view(-1, width).sum(0) for v in (x, y)]
    return width * float(padded[0] @ padded[1]) / float(x.square().sum() * y.square().sum())


@pytest.mark.parametrize("signs", [4099, 127], ids=["P below T", "P above T"])
def test_variance_of_sketched_inner_products(signs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    width, size, draws = 67, 2000, 200
    rows = torch.randn(3, size, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    rows[1] = 0.7 * rows[0] + rows[1]
    exact, lengths = rows @ rows.T, rows.norm(dim=1)
    found = torch.stack([sketched(rows, monkeypatch, seed, width, signs) for seed in range(draws)])
    betas = torch.tensor([[beta(x, y, width) for y in rows] for x in rows])
    bound = math.ceil(size / signs) * 2.0 * betas / width * torch.outer(lengths, lengths) ** 2
    assert (found.var(0) <= 1.3 * bound).all()  # 200 draws: the standard error of a variance is 10%
    assert ((found.mean(0) - exact).abs() <= 4.0 * (found.var(0) / draws).sqrt()).all()  # unbiased
    if signs > size:
        assert (found.var(0) >= 0.3 * bound).all()  # the bound is not empty


def test_entries_at_the_distance_of_the_signs_are_the_worst_case(monkeypatch: pytest.MonkeyPatch) -> None:
    width, signs, copies = 67, 127, 6
    rows = torch.randn(1, signs, generator=torch.Generator().manual_seed(0), dtype=torch.float64).repeat(1, copies)
    found = torch.stack([sketched(rows, monkeypatch, seed, width, signs) for seed in range(150)])[:, 0, 0]
    usual = 2.0 * beta(rows[0], rows[0], width) / width * float(rows.square().sum()) ** 2
    assert 2.0 * usual < float(found.var()) <= 1.3 * copies * usual


def test_sketched_min_norm_value_has_the_stated_relative_error(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(1)
    width, near = 1031, torch.randn(1, 5000, generator=generator, dtype=torch.float64)
    rows = torch.cat([near, -near + 0.05 * torch.randn(1, 5000, generator=generator, dtype=torch.float64)])
    rows = torch.cat([rows, torch.randn(1, 5000, generator=generator, dtype=torch.float64)])  # nearly stationary
    gramian = rows @ rows.T
    basis = torch.linalg.qr(rows.T)[0].T
    value = float(min_norm_weights(gramian) @ gramian @ min_norm_weights(gramian))
    assert value < 2e-3 * float(gramian.diagonal().min())
    squares = []
    for seed in range(20):
        found = sketched(rows, monkeypatch, seed, width, 16_411)
        error = sketched(basis, monkeypatch, seed, width, 16_411) - torch.eye(3, dtype=torch.float64)
        epsilon = float(error.norm())
        squares.append(epsilon**2)
        weights = min_norm_weights(found)
        sketched_value, taken = float(weights @ found @ weights), float(weights @ gramian @ weights)
        assert (1.0 - epsilon) * value <= sketched_value <= (1.0 + epsilon) * value
        assert taken <= (1.0 + epsilon) / (1.0 - epsilon) * value
        bound = (1.0 - epsilon) * taken - epsilon * gramian.diagonal().sqrt() * math.sqrt(taken)
        assert (gramian @ weights >= bound).all()
    largest = max(beta(x, y, width) for x in basis for y in basis)
    assert 0.2 < np.mean(squares) / (2.0 * 9.0 * largest / width) <= 1.0


# When Adaptive switches


def test_noisy_steps_stall_at_the_stated_gradient() -> None:
    draw, smoothness, eta, noise = np.random.default_rng(0), 2.0, 0.3, 5.0
    x = np.zeros((4000, 3))
    for _ in range(30):
        x = x - eta * (smoothness * x + draw.normal(size=x.shape) * math.sqrt(noise / 3))
    level = eta * smoothness * noise / (2.0 - eta * smoothness)
    assert float((smoothness * x) ** 2 @ np.ones(3) @ np.ones(4000)) / 4000 == pytest.approx(level, rel=0.05)


def test_error_of_differences_is_at_most_the_sum_of_their_squares() -> None:
    problem, draw, repeats, count = Waves(2), np.random.default_rng(3), 400, 10
    errors, sums = np.zeros(count), np.zeros(count)
    for _ in range(repeats):
        x = problem.start.copy()
        estimate, total = problem.gradients(x)[0], 0.0
        for i in range(count):
            before, x = x, x - 0.05 * estimate
            chosen = draw.integers(0, 40, 2)
            angles = problem.a[chosen, 0] @ np.stack([x, before]).T + problem.b[chosen, 0][:, None]
            change = np.sin(angles) @ np.array([1.0, -1.0]) @ problem.a[chosen, 0] / 2
            estimate = estimate + change
            total += float(change @ change)
            errors[i] += float(((estimate - problem.gradients(x)[0]) ** 2).sum()) / repeats
            sums[i] += total / repeats
    assert (errors <= sums).all()
    assert (errors >= 0.05 * sums).all()  # the bound is not empty
