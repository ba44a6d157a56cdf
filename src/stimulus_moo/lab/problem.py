"""Definition of a training problem: a model, its losses and its data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn


@dataclass(frozen=True)
class Problem:
    """Arguments of ``fit``, and the test of the result.

    Attributes:
        model: the model, initialized from the seed.
        losses: ``losses(model, batch)`` returns the S mean losses.
        data: training data, tensors in memory.
        tasks: names of the S objectives.
        shared: parameters whose gradients determine the weights; None for all.
        test: function from the trained model to test metrics, each a list with one number per task.
        source: origin of the data.
        synthetic: whether the data is generated.
    """

    model: nn.Module
    losses: Callable[[Any, Any], Any]
    data: Any
    tasks: tuple[str, ...]
    shared: list[nn.Parameter] | None = None
    test: Callable[[nn.Module], dict[str, list[float]]] | None = None
    source: str = ""
    synthetic: bool = False
