"""Problems for comparing methods, by name, with the budgets of gradient evaluations."""

from __future__ import annotations

import runpy
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, softplus

from stimulus_moo import Result, fit
from stimulus_moo.lab.problem import Problem
from stimulus_moo.lab.synthetic.point import Point
from stimulus_moo.lab.synthetic.ridge import multi_objective_ridge


@dataclass(frozen=True)
class Case:
    """A problem, its batch size (also its period), and the budgets at which losses are compared."""

    title: str
    make: Callable[[int], Problem]
    batch: int
    budgets: tuple[int, ...]
    held_out: bool  # was it excluded while the rules were developed?
    grid: tuple[float, ...] = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0)


def train(case: Case, made: Problem, *, seed: int, budget: int, **options: Any) -> Result:
    """Return the result of ``fit`` on a problem with a budget of gradient evaluations."""
    sizes = {"batch_size": case.batch, "period": case.batch, "gradients": budget, "steps": budget}
    return fit(made.model, made.losses, made.data, seed=seed, progress=False, **sizes, **options)


def multimnist(seed: int) -> Problem:
    from stimulus_moo.lab.experiments.multimnist import EXPERIMENT

    return EXPERIMENT.build(EXPERIMENT.settings, seed, None)


def river_flow(seed: int) -> Problem:
    from stimulus_moo.lab.experiments.riverflow import EXPERIMENT

    return EXPERIMENT.build(EXPERIMENT.settings.override({"n": None}), seed, None)


def digits(seed: int) -> Problem:
    from stimulus_moo.lab.data import load_digits

    pairs = load_digits(n_train=1024, n_test=512, seed=0)
    inputs = pairs.train[0].flatten(1)
    torch.manual_seed(seed)
    layers = [nn.Linear(inputs.shape[1], 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 20)]

    def losses(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
        scores = model(batch[0])
        return torch.stack([cross_entropy(scores[:, :10], batch[1]), cross_entropy(scores[:, 10:], batch[2])])

    return Problem(nn.Sequential(*layers), losses, (inputs, *pairs.train[1:]), tasks=("left", "right"))


def logistic(seed: int, *, decay: float = 0.0, n: int = 8192, dimension: int = 50, objectives: int = 3) -> Problem:
    """Nonconvex regularised logistic regression; the scale of the features is index^-decay."""
    rng = np.random.default_rng(100 + seed)
    scale = np.arange(1, dimension + 1.0) ** -decay
    inputs = rng.standard_normal((n, dimension)) * scale / np.sqrt((scale**2).mean())
    truth = rng.standard_normal((objectives, dimension)) + 0.5 * rng.standard_normal(dimension)
    noisy = inputs @ truth.T / np.sqrt(dimension) + 0.5 * rng.standard_normal((n, objectives))
    start = torch.tensor(0.1 * rng.standard_normal(dimension))

    def losses(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
        x = model()
        margins = batch[1] * (batch[0] @ x)[:, None]
        return softplus(-margins).mean(0) + 1e-2 * (x * x / (1 + x * x)).sum()

    data = torch.tensor(inputs), torch.tensor(np.where(noisy > 0, 1.0, -1.0))
    return Problem(Point(start), losses, data, tasks=tuple(f"labels {s}" for s in range(objectives)))


def ill_conditioned(seed: int) -> Problem:
    return logistic(seed, decay=1.0)


def fairness(seed: int) -> Problem:
    """The losses of two groups of patients, from examples/fairness.py, plus an L2 penalty."""
    example = runpy.run_path(str(Path(__file__).parents[1] / "examples" / "fairness.py"), run_name="example")
    torch.manual_seed(seed)

    def losses(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
        decay = sum((p.square().sum() for p in model.parameters()), torch.zeros(()))
        both: Tensor = example["losses"](model, batch)
        return both + 1e-3 * decay

    model = nn.Sequential(nn.Linear(10, 16), nn.Tanh(), nn.Linear(16, 1))
    return Problem(model, losses, example["load"](), tasks=("one group", "the other"))


def ridge(seed: int) -> Problem:
    return multi_objective_ridge(4096, seed=200 + seed, objectives=3, dimension=30, ridge=0.1).problem


CASES = {
    "multimnist": Case("MultiMNIST, LeNet", multimnist, 32, (7_500, 15_000, 30_000), held_out=False),
    "riverflow": Case("river flow RF1, tanh network", river_flow, 32, (50_000, 150_000, 300_000), held_out=False),
    "logistic": Case("nonconvex logistic", logistic, 91, (50_000, 200_000, 800_000), held_out=False),
    "ill-conditioned": Case(
        "nonconvex logistic, ill-conditioned", ill_conditioned, 91, (50_000, 200_000, 800_000), held_out=False
    ),
    "digits": Case("digits, ReLU network", digits, 32, (10_000, 30_000, 60_000), held_out=False),
    "fairness": Case("fairness, tanh network", fairness, 22, (10_000, 50_000, 200_000), held_out=True),
    "ridge": Case("ridge regression", ridge, 64, (10_000, 30_000, 100_000), held_out=True),
}
