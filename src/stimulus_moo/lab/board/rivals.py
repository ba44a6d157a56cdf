"""The rivals of the scoreboard as plain data: how each is trained, and its grid of learning rates."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from stimulus_moo import Balanced
from stimulus_moo.integrations import torchjd
from stimulus_moo.lab.board.scalarised import DynamicAverage, Famo, Relative, Scalarisation, Single, Uncertainty

ADAM = (0.001, 0.003, 0.01)
SGD = (0.03, 0.1, 0.3)
SINGLE, MEAN, AUTO = "single-task", "adam-mean", "auto"


@dataclass(frozen=True)
class Start:
    """What a rule may know before the first step: the tasks, the steps of a period, and the losses at the start."""

    tasks: int
    period: int
    losses: Callable[[], list[float]]


@dataclass(frozen=True)
class Rival:
    """A row of the table of rivals; either ``rule`` or ``options`` says how it is trained.

    Attributes:
        name: name on the page.
        source: the method's paper, and whose code runs.
        rates: learning rates to choose from; empty if the method needs none.
        rule: function to the loss that a plain PyTorch loop with Adam minimises.
        options: function from the number of tasks to options of ``fit``.
        needs: packages without which it is left out.
        full: whether it passes over all data at the first step; it is left out where that exceeds the budget.
        ours: whether it is the library's own method; its runs are repeated when the library has changed.
    """

    name: str
    source: str
    rates: tuple[float, ...] = ADAM
    rule: Callable[[Start], Scalarisation] | None = None
    options: Callable[[int], Mapping[str, Any]] | None = None
    needs: tuple[str, ...] = ()
    full: bool = False
    ours: bool = False

    @property
    def available(self) -> bool:
        """Whether its packages are installed and work."""
        return all(map(_importable, self.needs))


def _importable(package: str) -> bool:
    try:
        import_module(package)
    except ImportError:
        return False
    return True


def single_task(task: int) -> Rival:
    """Return the rival that trains on one loss."""
    return Rival(SINGLE, "one model per loss, each with the whole budget", rule=lambda start: Single(task))


def _adam(weighting: Callable[[int], Any]) -> Callable[[int], Mapping[str, Any]]:
    """Return the options of ``fit`` for Adam with a weighting, from all gradients at every step."""
    return lambda tasks: {"method": "scalarisation-adam", "weighting": weighting(tasks), "guard": False}


def _named(name: str) -> Callable[[int], Mapping[str, Any]]:
    return _adam(lambda tasks: torchjd.build(name))


def _cagrad(tasks: int) -> Any:
    return import_module("torchjd.aggregation").CAGradWeighting(c=0.4)


@dataclass
class NashWeights:
    """TorchJD's Nash-MTL, which takes the Jacobian: any matrix with the same Gramian has the same weights."""

    tasks: int
    rule: Any = field(init=False)

    def __post_init__(self) -> None:
        aggregator = import_module("torchjd.aggregation").NashMTL(n_tasks=self.tasks, update_weights_every=10)
        self.rule = aggregator.weighting

    def __call__(self, gramian: Tensor) -> Tensor:
        """Return the weights."""
        values, vectors = torch.linalg.eigh(gramian)
        weights: Tensor = self.rule(vectors * values.clamp(min=0.0).sqrt())
        return weights


_SOLVERS = ("torchjd", "qpsolvers", "quadprog")

#: Every rival but the single-task models, in the order of the page.
_TABLE = (
    Rival(MEAN, "Adam on the mean loss", rule=lambda start: Scalarisation()),
    Rival("adam-relative", "Adam on the losses divided by their start", rule=lambda start: Relative(start.losses())),
    Rival("uncertainty", "Kendall et al. 2018, own code", rule=lambda start: Uncertainty(start.tasks)),
    Rival("dwa", "Liu et al. 2019, own code", rule=lambda start: DynamicAverage(start.tasks, start.period)),
    Rival("famo", "Liu et al. 2023, own code", rule=lambda start: Famo(start.tasks)),
    Rival("mgda", "Sener and Koltun 2018, TorchJD", options=_named("mgda"), needs=("torchjd",)),
    Rival("upgrad", "Quinton and Rey 2024, TorchJD", options=_named("upgrad"), needs=_SOLVERS),
    Rival(
        "cagrad", "Liu et al. 2021, TorchJD, c = 0.4", options=_adam(_cagrad), needs=("torchjd", "cvxpy", "clarabel")
    ),
    Rival("imtl-g", "Liu et al. 2021, TorchJD", options=_named("imtl-g"), needs=("torchjd",)),
    Rival(
        "nash-mtl",
        "Navon et al. 2022, TorchJD, solved at every tenth step",
        options=_adam(NashWeights),
        needs=("torchjd", "cvxpy", "ecos"),
    ),
    Rival("aligned-mtl", "Senushkin et al. 2023, TorchJD", options=_named("aligned-mtl"), needs=("torchjd",)),
    Rival("pcgrad", "Yu et al. 2020, TorchJD", options=_named("pcgrad"), needs=("torchjd",)),
    Rival("smgd", "Liu and Vicente 2021", SGD, options=lambda tasks: {"method": "smgd"}, ours=True),
    Rival("moco", "Fernando et al. 2023", SGD, options=lambda tasks: {"method": "moco"}, ours=True),
    Rival("stimulus-m", "the paper", SGD, options=lambda tasks: {"method": "stimulus-m"}, full=True, ours=True),
    Rival("stimulus-m+", "the paper", SGD, options=lambda tasks: {"method": "stimulus-m+"}, ours=True),
    Rival(
        "balanced",
        "Adam with balanced weights, solved when due",
        options=lambda tasks: {
            **_adam(lambda tasks: Balanced(memory=0.9))(tasks),
            "reweigh": "auto",
        },
        ours=True,
    ),
    Rival(AUTO, "fit(model, losses, data), nothing to tune", (), options=lambda tasks: {}, ours=True),
)

#: By name.
RIVALS: dict[str, Rival] = {rival.name: rival for rival in _TABLE}
