"""The two objects that a guard or a schedule works on."""

from __future__ import annotations

from typing import Any

from torch.optim import Optimizer

from stimulus_moo.errors import InvalidOption
from stimulus_moo.multigradient import MultiGradient


def check_pair(optimizer: Any, multigradient: Any) -> None:
    """Raise InvalidOption unless they are an optimizer and a MultiGradient."""
    if not isinstance(optimizer, Optimizer):
        raise InvalidOption(f"optimizer must be a torch.optim.Optimizer, found {optimizer!r}")
    if not isinstance(multigradient, MultiGradient):
        raise InvalidOption(f"multigradient must be a MultiGradient, found {multigradient!r}")
