"""Problems of the scoreboard with images as data: two objects on one canvas, and 40 synthetic attributes."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from torch import nn

from stimulus_moo.lab.board.problem import Made
from stimulus_moo.lab.board.scores import accuracies, balanced_accuracies, outputs
from stimulus_moo.lab.data import (
    TaskData,
    load_attributes,
    load_fashion_plus_mnist,
    load_multifashion,
    load_multimnist,
)
from stimulus_moo.lab.experiments.classification import attribute_losses, class_losses
from stimulus_moo.lab.models import LeNet, MultiHead

_PAIRS: dict[str, Callable[..., TaskData]] = {
    "multimnist": load_multimnist,
    "multifashion": load_multifashion,
    "fashion+mnist": load_fashion_plus_mnist,
}
_ATTRIBUTES = {"train": 4096, "validation": 1024, "test": 2048}


@lru_cache(maxsize=1)
def _pair_data(name: str, folder: Any) -> TaskData:
    return _PAIRS[name](n_train=60_000, n_validation=6_000, n_test=10_000, seed=0, data=folder)


def pairs(name: str) -> Callable[[int, Any], Made]:
    """Return the function that makes a problem with two images on one canvas."""

    def make(seed: int, folder: Any) -> Made:
        data = _pair_data(name, folder)
        parts = {"validation": data.validation, "test": data.test}
        torch.manual_seed(seed)
        model = LeNet(heads=2)

        def score(model: nn.Module, split: str) -> list[float]:
            images, *labels = parts[split]
            return accuracies(outputs(model, images), tuple(labels))

        return Made(model, class_losses, data.train, score, shared=model.shared_parameters(), parts=parts)

    return make


@lru_cache(maxsize=1)
def _attribute_data() -> dict[str, tuple[torch.Tensor, ...]]:
    both = load_attributes(n_train=_ATTRIBUTES["train"] + _ATTRIBUTES["validation"], n_test=_ATTRIBUTES["test"], seed=0)
    n = _ATTRIBUTES["train"]
    return {
        "train": tuple(tensor[:n] for tensor in both.train),
        "validation": tuple(tensor[n:] for tensor in both.train),
        "test": both.test,
    }


def attributes(seed: int, folder: Any) -> Made:
    """Make the 40 synthetic attributes; no files are needed."""
    data = _attribute_data()
    torch.manual_seed(seed)
    trunk = nn.Sequential(
        *(nn.Conv2d(3, 16, 3, stride=2, padding=1), nn.ReLU()),
        *(nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.ReLU()),
        *(nn.Conv2d(32, 64, 3, stride=2, padding=1), nn.ReLU()),
        *(nn.Flatten(), nn.Linear(64 * 4 * 4, 128), nn.ReLU()),
    )
    model = MultiHead(trunk, nn.Linear(128, data["train"][1].shape[1]))

    def score(model: nn.Module, split: str) -> list[float]:
        images, labels = data[split]
        return balanced_accuracies(outputs(model, images), labels)

    return Made(model, attribute_losses, data["train"], score, shared=model.shared_parameters())
