"""Problems of the scoreboard with tables as data: Census-Income, Tox21, fairness and multi-target regression."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from importlib.util import find_spec
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from stimulus_moo.lab.board.problem import Made
from stimulus_moo.lab.board.scores import fairness_scores, outputs, relative_errors, roc_aucs
from stimulus_moo.lab.data import (
    TaskData,
    load_adult,
    load_census,
    load_compas,
    load_credit,
    load_riverflow,
    load_tox21,
)
from stimulus_moo.lab.data.tox21 import HASHED, MORGAN
from stimulus_moo.lab.models import MultiHead

Make = Callable[[int, Any], Made]


class Columns(nn.ModuleList):
    """Heads with one output each; returns an n x S tensor."""

    def forward(self, features: Tensor) -> Tensor:
        """Apply every head."""
        return torch.cat([head(features) for head in self], dim=1)


def shared_bottom(inputs: int, trunk: Sequence[int], head: int, tasks: int) -> MultiHead:
    """Return a ReLU network with a shared trunk and a tower with one hidden layer for every task."""
    layers = [layer for pair in pairwise((inputs, *trunk)) for layer in (nn.Linear(*pair), nn.ReLU())]
    towers = [nn.Sequential(nn.Linear(trunk[-1], head), nn.ReLU(), nn.Linear(head, 1)) for _ in range(tasks)]
    return MultiHead(nn.Sequential(*layers), Columns(towers))


def binary_losses(model: Any, batch: tuple[Tensor, Tensor]) -> Tensor:
    """Return the mean cross-entropy of every column of labels."""
    inputs, labels = batch
    return binary_cross_entropy_with_logits(model(inputs), labels, reduction="none").mean(0)


def masked_losses(model: Any, batch: tuple[Tensor, Tensor, Tensor]) -> Tensor:
    """Return the mean cross-entropy of every column over its known labels; 0 if there are none."""
    inputs, labels, known = batch
    each = binary_cross_entropy_with_logits(model(inputs), labels, reduction="none")
    return (each * known).sum(0) / known.sum(0).clamp(min=1)


def known_labels(batch: tuple[Tensor, Tensor, Tensor]) -> Tensor:
    """Return the number of known labels of every task."""
    return batch[2].sum(0)


@lru_cache(maxsize=1)  # the dense inputs take 600 MB
def _census(tasks: tuple[str, ...], folder: Any) -> TaskData:
    return load_census(tasks=tasks, data=folder)


def census(*tasks: str) -> Make:
    """Return the function that makes Census-Income with these tasks."""

    def make(seed: int, folder: Any) -> Made:
        data = _census(tasks, folder)
        parts = {"validation": data.validation, "test": data.test}
        torch.manual_seed(seed)
        model = shared_bottom(data.train[0].shape[1], (128,), 32, len(tasks))

        def score(model: nn.Module, split: str) -> list[float]:
            inputs, labels = parts[split]
            return roc_aucs(outputs(model, inputs), labels)

        return Made(model, binary_losses, data.train, score, shared=model.shared_parameters())

    return make


def tox21_encoding() -> str:
    """Return how the loader encodes molecules here."""
    return MORGAN if find_spec("rdkit") is not None else HASHED


@lru_cache(maxsize=1)
def _tox21_data(folder: Any) -> TaskData:
    return load_tox21(data=folder)


def tox21(seed: int, folder: Any) -> Made:
    """Make Tox21."""
    data = _tox21_data(folder)
    parts = {"validation": data.validation, "test": data.test}
    torch.manual_seed(seed)
    trunk = nn.Sequential(nn.Linear(data.train[0].shape[1], 256), nn.ReLU(), nn.Dropout(0.5))
    model = MultiHead(trunk, nn.Linear(256, len(data.tasks)))

    def score(model: nn.Module, split: str) -> list[float]:
        inputs, labels, known = parts[split]
        model.eval()
        found = roc_aucs(outputs(model, inputs), labels, known)
        model.train()
        return found

    return Made(model, masked_losses, data.train, score, known_labels, model.shared_parameters())


def deo_surrogate(logits: Tensor, label: Tensor, group: Tensor) -> Tensor:
    """Return the surrogate of the difference of equality of opportunity, with tanh in place of a threshold.

    The rule of Padh et al. (2021), as used in COSMOS: |sum over women - sum over men| of tanh(max(logit, 0)) of the
    positives, divided by the size of the batch.
    """
    positive = torch.tanh(torch.relu(logits)) * label
    return (positive * (2.0 * group - 1.0)).sum().abs() / len(label)


def fairness_losses(model: Any, batch: tuple[Tensor, Tensor, Tensor]) -> Tensor:
    """Return cross-entropy and the DEO surrogate."""
    inputs, label, group = batch
    logits = model(inputs).squeeze(1)
    entropy = binary_cross_entropy_with_logits(logits, label)
    return torch.stack([entropy, deo_surrogate(logits, label, group.to(logits))])


def fairness_network(inputs: int) -> nn.Sequential:
    """Return the network of COSMOS: two hidden layers and one logit."""
    return nn.Sequential(nn.Linear(inputs, 60), nn.ReLU(), nn.Linear(60, 25), nn.ReLU(), nn.Linear(25, 1))


_FAIRNESS = {"adult": load_adult, "compas": load_compas, "credit": load_credit}


@lru_cache(maxsize=3)
def _fairness_data(name: str, folder: Any) -> TaskData:
    return _FAIRNESS[name](data=folder)


def fairness(name: str) -> Make:
    """Return the function that makes a problem of fairness."""

    def make(seed: int, folder: Any) -> Made:
        data = _fairness_data(name, folder)
        parts = {"validation": data.validation, "test": data.test}
        torch.manual_seed(seed)
        model = fairness_network(data.train[0].shape[1])

        def score(model: nn.Module, split: str) -> list[float]:
            inputs, label, group = parts[split]
            return fairness_scores(outputs(model, inputs).squeeze(1), label, group)

        return Made(model, fairness_losses, data.train, score, parts=parts)

    return make


@lru_cache(maxsize=1)
def _targets(file: str | None, targets: int, folder: Any) -> TaskData:
    return load_riverflow(file=file, targets=targets, validation_share=0.1, data=folder)


def squared_losses(model: Any, batch: tuple[Tensor, Tensor]) -> Tensor:
    """Return the mean squared error of every target."""
    inputs, targets = batch
    squared: Tensor = (model(inputs) - targets).square()
    return squared.mean(0)


def multi_target(file: str | None = None, targets: int = 8) -> Make:
    """Return the function that makes a problem of multi-target regression: an ARFF file of Mulan, None for RF1."""

    def make(seed: int, folder: Any) -> Made:
        data = _targets(file, targets, folder)
        parts, means = {"validation": data.validation, "test": data.test}, data.train[1].mean(0)
        torch.manual_seed(seed)
        layers = [nn.Linear(data.train[0].shape[1], 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU()]
        model = MultiHead(nn.Sequential(*layers), nn.Linear(64, len(data.tasks)))

        def score(model: nn.Module, split: str) -> list[float]:
            inputs, truth = parts[split]
            return relative_errors(outputs(model, inputs), truth, means)

        return Made(model, squared_losses, data.train, score, shared=model.shared_parameters())

    return make
