"""The method database of the tests: every method of the paper with its twin, and one problem for all of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from stimulus_moo import METHODS, PAPER_METHODS, MultiGradient
from stimulus_moo.data.sources import as_source
from stimulus_moo.methods import Settings
from tests.reference import twins
from tests.reference.problems import NonconvexSum

STEPS = 200
LR = 0.1
BATCH = 8
PERIOD = 8
MOMENTUM = 0.5
ADAPTIVE = {"sigma2": 0.5, "epsilon": 0.02, "c_gamma": 8.0, "c_epsilon": 1.0}
MOCO = {"beta": 0.3, "gamma": 0.1, "rho": 0.01}


@dataclass(frozen=True)
class Case:
    """One method: the options of its row, and its literal twin with the same options."""

    name: str
    twin: Callable[..., Any]
    options: dict[str, Any] = field(default_factory=dict)
    twin_options: dict[str, Any] = field(default_factory=dict)
    draws: bool = False


CASES = {
    case.name: case
    for case in (
        Case("mgd", twins.mgd),
        Case("smgd", twins.smgd),
        Case("moco", twins.moco, MOCO, MOCO),
        Case("moco+", twins.moco_plus, MOCO, MOCO),
        Case("cr-mogm", twins.cr_mogm, {"alpha": 0.7}, {"alpha": 0.7}),
        Case("stimulus", twins.stimulus, {}, {"period": PERIOD}),
        Case("stimulus-m", twins.stimulus_m, {}, {"period": PERIOD, "momentum": MOMENTUM}),
        Case("stimulus+", twins.stimulus_plus, ADAPTIVE, {"period": PERIOD, **ADAPTIVE}, draws=True),
        Case(
            "stimulus-m+",
            twins.stimulus_m_plus,
            ADAPTIVE,
            {"period": PERIOD, "momentum": MOMENTUM, **ADAPTIVE},
            draws=True,
        ),
    )
}
assert tuple(CASES) == PAPER_METHODS


class Point(nn.Module):
    """A model that is one vector x."""

    def __init__(self, x: Any) -> None:
        super().__init__()
        self.x = nn.Parameter(torch.as_tensor(x, dtype=torch.float64).clone())


class TorchProblem:
    """The torch side of ``NonconvexSum``: the same per-sample losses through autograd, nothing shared with the twin."""

    def __init__(self, order: tuple[int, ...] = (0, 1, 2)) -> None:
        self.numpy = NonconvexSum()
        self.order = list(order)
        self.columns = (
            torch.tensor(self.numpy.features).transpose(0, 1).contiguous()[:, self.order],
            torch.tensor(self.numpy.targets).T.contiguous()[:, self.order],
        )
        self.start = np.random.default_rng(1).standard_normal(self.numpy.dimension)
        draw = np.random.default_rng(2)
        self.batches = [draw.choice(self.numpy.n, BATCH, replace=False) for _ in range(STEPS)]

    def losses(self, model: Point, batch: tuple[Tensor, Tensor]) -> Tensor:
        features, targets = batch
        values = torch.tanh(features @ model.x)
        penalty = self.numpy.regularisation * (model.x**2 / (1 + model.x**2)).sum()
        return 0.5 * (values - targets).square().mean(0) + penalty

    def batch(self, t: int) -> tuple[Tensor, ...]:
        return tuple(column[torch.as_tensor(self.batches[t])] for column in self.columns)

    def drawer(self, seed: int = 0) -> Callable[[int], np.ndarray]:
        """The index draw of AdaptiveBatch, so that the twin sees the same anchors."""
        generator = torch.Generator().manual_seed(seed)
        return lambda size: torch.randperm(self.numpy.n, generator=generator)[:size].numpy()


class Trained:
    """A method of the table on its way over the problem."""

    def __init__(self, name: str, problem: TorchProblem, engine: str = "auto", **changes: Any) -> None:
        method = METHODS[name]
        options: dict[str, Any] = dict(
            lr=LR, momentum=MOMENTUM, batch_size=BATCH, period=PERIOD, anchor_batch=17, **CASES[name].options
        )
        settings = Settings(source=as_source(problem.columns), **{**options, **changes})
        self.problem = problem
        self.model = Point(problem.start)
        estimator, weighting = method.estimator(settings), method.weighting(settings)
        self.multigradient = MultiGradient(self.model, problem.losses, estimator, weighting, engine=engine)
        self.optimizer = method.step(self.model.parameters(), settings)
        self.x = [self.model.x.detach().numpy().copy()]
        self.steps: list[Any] = []

    def run(self, steps: int) -> Trained:
        for _ in range(steps):
            self.steps.append(self.multigradient.backward(self.problem.batch(len(self.x) - 1)))
            self.optimizer.step()
            self.x.append(self.model.x.detach().numpy().copy())
        return self

    @property
    def path(self) -> np.ndarray:
        return np.array(self.x)

    def state(self) -> dict[str, Any]:
        return {
            "x": self.model.x.detach().clone(),
            "optimizer": self.optimizer.state_dict(),
            "multigradient": self.multigradient.state_dict(),
        }
