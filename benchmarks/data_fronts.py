"""Cells of the benchmark of fronts on data: fairness of three tables, and pairs of images."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import process_time
from typing import Any

import torch
from torch import nn

from benchmarks.cells import Found
from stimulus_moo import fit, hypervolume
from stimulus_moo.fronts import pareto_front
from stimulus_moo.lab import data as loaders
from stimulus_moo.lab.board.tabular import fairness_losses, fairness_network
from stimulus_moo.lab.experiments.classification import class_losses
from stimulus_moo.lab.models import LeNet

POINTS, REFERENCE = 11, [2.0, 2.0]
TABLES = ("compas", "adult", "credit")
IMAGES = {
    "multimnist": "load_multimnist",
    "multifashion": "load_multifashion",
    "fashion+mnist": "load_fashion_plus_mnist",
}
_VALIDATION = 0.1  # share of the training images
_PIECE = 512  # samples per batch of a test


@dataclass(frozen=True)
class _Case:
    model: Callable[[], nn.Module]
    losses: Any
    train: Any
    parts: dict[str, Any]  # validation and test


def data_front(data: str, seed: int, steps: int, batch: int, n: int | None = None) -> Found:
    """Trace the front of a data set; return hypervolumes, the passes of it and of one point, CPU seconds."""
    case = case_of(data, seed, n)
    options: dict[str, Any] = {"batch_size": batch, "seed": seed, "check": False, "progress": False, "steps": steps}
    if data in TABLES:  # the surrogate is no mean over samples: a pass must be one batch
        options["anchor_batch"] = len(case.train[0])
    begin = process_time()
    front = pareto_front(case.model(), case.losses, case.train, points=POINTS, **options)
    seconds = process_time() - begin
    one = fit(case.model(), case.losses, case.train, preference=[1.0, 1.0], **options)
    volumes = {
        name: front.measured(case.losses, _pieces(part)).hypervolume(REFERENCE) for name, part in case.parts.items()
    }
    cost = {"passes": front.passes, "one_point": one.passes, "n": len(case.train[0]), "seconds": seconds}
    return {"points": len(front), **volumes, **cost}


def data_sweep(data: str, seed: int, lr: float, steps: int, batch: int, n: int | None = None) -> Found:
    """Minimise weighted sums with Adam; return hypervolumes, passes and CPU seconds."""
    case = case_of(data, seed, n)
    begin, passes, found = process_time(), 0, []
    for k in range(POINTS):
        model, share = case.model(), k / (POINTS - 1)
        options: dict[str, Any] = {"batch_size": batch, "check": False, "progress": False, "guard": False, "seed": k}
        rule: dict[str, Any] = {"method": "scalarisation-adam", "weights": [1.0 - share, share], "lr": lr}
        passes += fit(model, case.losses, case.train, steps=steps, **rule, **options).passes
        found.append(model)
    seconds = process_time() - begin
    volumes = {name: _measured(found, case.losses, part) for name, part in case.parts.items()}
    return {"points": POINTS, **volumes, "passes": passes, "n": len(case.train[0]), "seconds": seconds}


def case_of(data: str, seed: int, n: int | None) -> _Case:
    if data in TABLES:
        loaded: Any = getattr(loaders, f"load_{data}")(seed=seed)
        parts = {"validation": loaded.validation, "test": loaded.test}
        make: Any = lambda: fairness_network(loaded.train[0].shape[1])  # noqa: E731
        losses: Any = fairness_losses
    else:
        loaded = getattr(loaders, IMAGES[data])(n_train=n or 60_000, n_test=10_000, seed=0)
        kept = len(loaded.train[0]) - int(_VALIDATION * len(loaded.train[0]))
        parts = {"validation": tuple(column[kept:] for column in loaded.train), "test": loaded.test}
        size = loaded.train[0].shape[-1]
        make, losses = lambda: LeNet(heads=2, image_size=size), class_losses
        return _Case(_seeded(make, seed), losses, tuple(column[:kept] for column in loaded.train), parts)
    return _Case(_seeded(make, seed), losses, loaded.train, parts)


def _seeded(make: Callable[[], nn.Module], seed: int) -> Callable[[], nn.Module]:
    def made() -> nn.Module:
        torch.manual_seed(seed)
        return make()

    return made


def _pieces(part: Any) -> list[Any]:
    """Return a part in batches; a part with a fairness loss, which is no mean over samples, as one."""
    if part[0].dim() == 2:
        return [part]
    return list(zip(*(column.split(_PIECE) for column in part), strict=True))


def _measured(models: list[nn.Module], losses: Any, part: Any) -> float:
    found = []
    with torch.no_grad():
        for model in models:
            pieces = [(len(piece[0]), torch.stack(tuple(losses(model, piece)))) for piece in _pieces(part)]
            found.append((sum(size * values for size, values in pieces) / len(part[0])).tolist())
    return hypervolume(found, REFERENCE)
