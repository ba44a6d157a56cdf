"""One training problem of the lab: a model, its losses and its data, freshly made from a seed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn


@dataclass(frozen=True)
class Problem:
    """Everything ``fit`` needs, and how the result is tested.

    Attributes:
        model: started from the seed.
        losses: ``losses(model, batch)`` returns the S mean losses.
        data: the training data, tensors in memory.
        tasks: the S objectives' names.
        shared: the parameters that decide the weights; None for all.
        test: from the trained model to test metrics, each a list with one number per task.
        source: where the data came from.
        synthetic: whether the data was made by a program.
    """

    model: nn.Module
    losses: Callable[[Any, Any], Any]
    data: Any
    tasks: tuple[str, ...]
    shared: list[nn.Parameter] | None = None
    test: Callable[[nn.Module], dict[str, list[float]]] | None = None
    source: str = ""
    synthetic: bool = False
