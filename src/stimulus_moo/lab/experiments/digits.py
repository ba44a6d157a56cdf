"""Demo experiments: classify two overlapping handwritten digits, from scikit-learn's bundled data."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from stimulus_moo.lab.data import load_digits
from stimulus_moo.lab.experiment import Experiment, ExperimentSettings
from stimulus_moo.lab.experiments.classification import class_losses, class_problem
from stimulus_moo.lab.models import MultiHead, TupleHeads
from stimulus_moo.lab.problem import Problem

#: Factor of the second loss of ``SCALED``.
FACTOR = 0.01


def build(settings: ExperimentSettings, seed: int, data: Path | None) -> Problem:
    """Return the two-digit problem, with a small multi-layer perceptron and two heads."""
    pairs = load_digits(n_train=settings.n or 1024, n_test=512, seed=0)
    torch.manual_seed(seed)
    pixels = pairs.train[0][0].numel()
    trunk = nn.Sequential(nn.Flatten(), nn.Linear(pixels, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
    return class_problem(MultiHead(trunk, TupleHeads(nn.Linear(64, 10) for _ in pairs.tasks)), pairs)


def scaled_losses(model: Any, batch: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
    """Return the two losses, the second one in other units."""
    left, right = class_losses(model, batch)
    return left, FACTOR * right


def build_scaled(settings: ExperimentSettings, seed: int, data: Path | None) -> Problem:
    """Return the two-digit problem with the second loss in other units."""
    problem = build(settings, seed, data)
    left, right = problem.tasks
    return replace(problem, losses=scaled_losses, tasks=(left, f"{right}, times {FACTOR:g}"))


EXPERIMENT = Experiment(
    name="digits",
    title="Two overlapping digits (bundled, real handwriting)",
    claim=(
        "Not in the paper: a small real problem on which every method runs in seconds, at equal cost "
        "and with each method's learning rate tuned."
    ),
    settings=ExperimentSettings(
        lr=0.1,
        momentum=0.5,
        batch_size=32,
        period=32,
        gradients=40_000,
        n=1024,
        evaluate_every=25,
        # Best of the grid, found by `stimulus-moo tune digits`; the STIMULUS family is best at 0.1.
        lr_of={
            "mgd": 0.3,
            "smgd": 0.3,
            "moco": 1.0,
            "moco+": 0.3,
            "cr-mogm": 0.3,
            "scalarisation": 0.3,
            "scalarisation-adam": 0.01,
        },
    ),
    build=build,
    quick={"gradients": 8_000},
)

SCALED = Experiment(
    name="digits-scaled",
    title=f"The same digits, one loss in other units (times {FACTOR:g})",
    claim=(
        "Not in the paper: losses of different scales. The sum of the losses follows the larger one, and the smaller "
        "one is not learned."
    ),
    settings=EXPERIMENT.settings,
    build=build_scaled,
    quick=EXPERIMENT.quick,
    methods=("auto",),
)
