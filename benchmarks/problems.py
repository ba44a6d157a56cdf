"""Problems for comparing methods, by name, with their batch sizes and budgets."""

from __future__ import annotations

import runpy
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, softplus

from stimulus_moo import Result, fit
from stimulus_moo.lab.problem import Problem
from stimulus_moo.lab.synthetic.point import Point
from stimulus_moo.lab.synthetic.ridge import multi_objective_ridge


@dataclass(frozen=True)
class Case:
    """A problem and how methods are compared on it.

    Attributes:
        title: for the table.
        make: a function from a seed to the problem.
        batch: batch size, also the period.
        passes: budget of a run, in per-sample derivatives of one scalar.
        held_out: whether the problem was excluded while the rules were developed.
        scales: factors of the losses in training. Losses are always reported without them.
        converges: whether runs come close to a stationary point, so that the stationarity is compared, too.
        seeds: number of seeds; five where a run takes less than about 15 s.
    """

    title: str
    make: Callable[[int], Problem]
    batch: int
    passes: int
    held_out: bool
    scales: tuple[float, ...] | None = None
    converges: bool = False
    seeds: int = 3

    def scaled(self, losses: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
        """Return the losses times the scales."""
        if self.scales is None:
            return losses
        scales = torch.tensor(self.scales)

        def scaled(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
            found = losses(model, batch)
            found = found if isinstance(found, Tensor) else torch.stack(tuple(found))
            return found * scales.to(found)

        return scaled


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


@cache
def _census() -> tuple[Tensor, ...]:
    from stimulus_moo.lab.data import load_census

    columns = load_census().train
    rows = torch.randperm(len(columns[0]), generator=torch.Generator().manual_seed(0))[:20_000]
    return tuple(column[rows] for column in columns)


def census(seed: int) -> Problem:
    """Income and marital status of 20,000 people of the training set."""
    data = _census()
    torch.manual_seed(seed)
    layers = [nn.Linear(data[0].shape[1], 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 2)]

    def losses(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
        return binary_cross_entropy_with_logits(model(batch[0]), batch[1], reduction="none").mean(0)

    return Problem(nn.Sequential(*layers), losses, data, tasks=("income", "never married"))


@cache
def _tox21() -> tuple[tuple[Tensor, ...], tuple[str, ...]]:
    from stimulus_moo.lab.data import load_tox21

    loaded = load_tox21()
    return loaded.train, loaded.tasks


def tox21(seed: int) -> Problem:
    """Twelve assays; the loss of each is the mean over the known labels of the batch."""
    data, tasks = _tox21()
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(data[0].shape[1], 128), nn.ReLU(), nn.Linear(128, len(tasks)))

    def losses(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
        inputs, labels, known = batch
        each = binary_cross_entropy_with_logits(model(inputs), labels, reduction="none")
        return (each * known).sum(0) / known.sum(0).clamp(min=1)

    return Problem(model, losses, data, tasks=tasks)


_LAST_OF_EIGHT = (*(1.0,) * 7, 0.01)

#: the problems on which rules were developed first
CASES = {
    "digits": Case("digits, ReLU network", digits, 32, 60_000, held_out=False, seeds=5),
    "riverflow": Case("river flow RF1, tanh network", river_flow, 32, 400_000, held_out=False, converges=True),
    "logistic": Case("nonconvex logistic", logistic, 91, 600_000, held_out=False, converges=True, seeds=5),
    "fairness": Case("fairness, tanh network", fairness, 22, 120_000, held_out=False, converges=True, seeds=5),
    "digits-scaled": Case(
        "digits, second loss x 0.01", digits, 32, 60_000, held_out=False, scales=(1.0, 0.01), seeds=5
    ),
    "multimnist": Case("MultiMNIST, LeNet", multimnist, 32, 40_000, held_out=True),
    "ill-conditioned": Case(
        "nonconvex logistic, ill-conditioned", ill_conditioned, 91, 600_000, held_out=False, converges=True, seeds=5
    ),
    "ridge": Case("ridge regression", ridge, 64, 200_000, held_out=False, converges=True, seeds=5),
    "riverflow-scaled": Case(
        "river flow RF1, last loss x 0.01", river_flow, 32, 400_000, held_out=True, scales=_LAST_OF_EIGHT
    ),
    "multimnist-scaled": Case(
        "MultiMNIST, second loss x 0.01", multimnist, 32, 40_000, held_out=True, scales=(1.0, 0.01)
    ),
    "census": Case("Census-Income, ReLU network", census, 128, 400_000, held_out=False, seeds=5),
    "tox21": Case("Tox21, 12 assays, ReLU network", tox21, 64, 400_000, held_out=False),
}
