"""Problems for comparisons of methods, by name: a model, its losses, the data, budgets of gradient evaluations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, softplus

Losses = Callable[[nn.Module, tuple[Tensor, ...]], Tensor]


@dataclass(frozen=True)
class Made:
    """A problem from a seed, which decides the model's start and, where data is drawn, the data."""

    model: nn.Module
    losses: Losses
    data: tuple[Tensor, ...]


@dataclass(frozen=True)
class Case:
    """A problem, the batch it is trained with (the period is as long), and the budgets at which losses are compared."""

    title: str
    make: Callable[[int], Made]
    batch: int
    budgets: tuple[int, ...]
    held_out: bool  # was it left aside while the rules were being found?
    grid: tuple[float, ...] = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0)


def multimnist(seed: int) -> Made:
    from stimulus_moo.lab.experiments.multimnist import EXPERIMENT

    built = EXPERIMENT.build(EXPERIMENT.settings, seed, None)
    return Made(built.model, built.losses, tuple(built.data))


def river_flow(seed: int) -> Made:
    from stimulus_moo.lab.experiments.riverflow import EXPERIMENT

    built = EXPERIMENT.build(EXPERIMENT.settings.override({"n": None}), seed, None)
    return Made(built.model, built.losses, tuple(built.data))


def digits(seed: int) -> Made:
    from stimulus_moo.lab.data import load_digits

    pairs = load_digits(n_train=1024, n_test=512, seed=0)
    inputs = pairs.train[0].flatten(1)
    torch.manual_seed(seed)
    layers = [nn.Linear(inputs.shape[1], 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 20)]

    def losses(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
        scores = model(batch[0])
        return torch.stack([cross_entropy(scores[:, :10], batch[1]), cross_entropy(scores[:, 10:], batch[2])])

    return Made(nn.Sequential(*layers), losses, (inputs, *pairs.train[1:]))


class Point(nn.Module):
    """A vector to be optimised."""

    def __init__(self, start: Tensor) -> None:
        super().__init__()
        self.x = nn.Parameter(start)


def logistic(seed: int, *, decay: float = 0.0, n: int = 8192, dimension: int = 50, objectives: int = 3) -> Made:
    """Nonconvex regularised logistic regression; features shrink as index^-decay."""
    rng = np.random.default_rng(100 + seed)
    scale = np.arange(1, dimension + 1.0) ** -decay
    inputs = rng.standard_normal((n, dimension)) * scale / np.sqrt((scale**2).mean())
    truth = rng.standard_normal((objectives, dimension)) + 0.5 * rng.standard_normal(dimension)
    noisy = inputs @ truth.T / np.sqrt(dimension) + 0.5 * rng.standard_normal((n, objectives))
    start = torch.tensor(0.1 * rng.standard_normal(dimension))

    def losses(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
        x = model.x
        margins = batch[1] * (batch[0] @ x)[:, None]
        return softplus(-margins).mean(0) + 1e-2 * (x * x / (1 + x * x)).sum()

    return Made(Point(start), losses, (torch.tensor(inputs), torch.tensor(np.where(noisy > 0, 1.0, -1.0))))


def ill_conditioned(seed: int) -> Made:
    return logistic(seed, decay=1.0)


def fairness(seed: int) -> Made:
    """The loss of two groups of patients of scikit-learn's diabetes data; weight decay is part of it."""
    from sklearn.datasets import load_diabetes

    bundled = load_diabetes()
    inputs = torch.tensor(bundled.data, dtype=torch.float32)
    inputs = (inputs - inputs.mean(0)) / inputs.std(0)
    target = torch.tensor(bundled.target > 140.5, dtype=torch.float32)
    group = inputs[:, bundled.feature_names.index("sex")] > 0
    member = torch.stack([group, ~group], dim=1).float()
    torch.manual_seed(seed)

    def losses(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
        each = binary_cross_entropy_with_logits(model(batch[0]).squeeze(1), batch[1], reduction="none")
        decay = sum((p.square().sum() for p in model.parameters()), torch.zeros(()))
        return (batch[2] * each[:, None]).mean(0) + 1e-3 * decay

    model = nn.Sequential(nn.Linear(10, 16), nn.Tanh(), nn.Linear(16, 1))
    return Made(model, losses, (inputs, target, member / member.mean(0)))


def ridge(seed: int) -> Made:
    """Three linear regressions with one coefficient vector, n = 4096."""
    rng = np.random.default_rng(200 + seed)
    inputs = rng.standard_normal((4096, 30)) * np.linspace(0.2, 1.0, 30)
    targets = inputs @ rng.standard_normal((30, 3)) + rng.standard_normal((4096, 3))

    def losses(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
        return (batch[0] @ model.x[:, None] - batch[1]).square().mean(0) + 0.1 * model.x.square().sum()

    return Made(Point(torch.zeros(30, dtype=torch.float64)), losses, (torch.tensor(inputs), torch.tensor(targets)))


CASES = {
    "multimnist": Case("MultiMNIST, LeNet", multimnist, 32, (7_500, 15_000, 30_000), held_out=False),
    "riverflow": Case("river flow RF1, tanh network", river_flow, 32, (50_000, 150_000, 300_000), held_out=False),
    "logistic": Case("nonconvex logistic", logistic, 91, (50_000, 200_000, 800_000), held_out=False),
    "ill-conditioned": Case(
        "nonconvex logistic, ill-conditioned", ill_conditioned, 91, (50_000, 200_000, 800_000), held_out=False
    ),
    "digits": Case("digits, ReLU network", digits, 32, (10_000, 30_000, 60_000), held_out=False),
    "fairness": Case("fairness, tanh network", fairness, 22, (10_000, 50_000, 200_000), held_out=True),
    "ridge": Case("ridge regression", ridge, 64, (20_000, 100_000, 400_000), held_out=True),
}
