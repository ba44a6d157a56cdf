"""MultiMNIST, the first experiment of the paper: two digits on one canvas, LeNet with two heads."""

from __future__ import annotations

from pathlib import Path

import torch

from stimulus_moo.lab.data import load_multimnist
from stimulus_moo.lab.experiment import Experiment, ExperimentSettings
from stimulus_moo.lab.experiments.classification import class_problem
from stimulus_moo.lab.models import LeNet
from stimulus_moo.lab.problem import Problem


def build(settings: ExperimentSettings, seed: int, data: Path | None) -> Problem:
    """Return the two-task problem. The seed determines the initialization; the images do not depend on it."""
    pairs = load_multimnist(n_train=settings.n or 60_000, n_test=2_000, seed=0, folder=settings.files, data=data)
    torch.manual_seed(seed)
    return class_problem(LeNet(heads=len(pairs.tasks), image_size=pairs.train[0].shape[-1]), pairs)


EXPERIMENT = Experiment(
    name="multimnist",
    title="MultiMNIST, two tasks, LeNet",
    claim=(
        "Figure 1: SMGD is slowest, MoCo slightly faster; MGD and STIMULUS are alike per iteration; the momentum "
        "variants are fastest; MGD needs the most samples, the + variants fewer than STIMULUS and STIMULUS-M."
    ),
    settings=ExperimentSettings(
        lr=0.3,
        momentum=0.5,
        batch_size=96,
        period=10,
        steps=300,
        n=1024,
        epsilon=1e-3,
        sigma2=0.02,  # not stated in the paper; chosen so that the adaptive anchors stay below n, see riverflow
        sigma2_of={"stimulus-m+": 0.003},
        c_gamma=32.0,
        c_epsilon=32.0,
        evaluate_every=20,
        lr_of={"scalarisation": 0.9, "scalarisation-adam": 0.003},  # best of the grid: `stimulus-moo tune multimnist`
    ),
    build=build,
    quick={"steps": 30, "n": 256, "batch_size": 32, "evaluate_every": 5},
)
