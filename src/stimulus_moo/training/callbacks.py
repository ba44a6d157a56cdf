"""What callbacks of ``fit`` receive."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.optim import Optimizer

from stimulus_moo.multigradient import MultiGradient


@dataclass(frozen=True)
class Progress:
    """Passed to every callback after every step.

    Attributes:
        step: the number of steps done.
        record: the step's entry of the history: step, samples, gradients, losses, weights, sq_norm, anchored, lr, and
            stationarity where it was evaluated.
        model, multigradient, optimizer: the live objects.
    """

    step: int
    record: dict[str, Any]
    model: torch.nn.Module
    multigradient: MultiGradient
    optimizer: Optimizer


#: Called after every step; returning True ends the run.
Callback = Callable[[Progress], bool | None]
