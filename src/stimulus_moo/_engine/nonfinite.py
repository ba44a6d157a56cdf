"""Checks for NaN and infinity, and the policy for steps that meet them."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from stimulus_moo.errors import NonFiniteError
from stimulus_moo.options import choice

if TYPE_CHECKING:
    from stimulus_moo._engine.rows import Rows

logger = logging.getLogger("stimulus_moo")

#: Consecutive steps that may be skipped. The next one raises, so that a run cannot go on with NaN forever.
MOST_IN_A_ROW = 10


def finite(tensor: Tensor) -> bool:
    """Return whether no entry is NaN or infinite.

    >>> import torch
    >>> finite(torch.tensor([1.0, 2.0])), finite(torch.tensor([3e38, 3e38])), finite(torch.tensor([1.0, torch.nan]))
    (True, True, False)
    """
    return math.isfinite(tensor.sum()) or bool(torch.isfinite(tensor).all())  # a sum of finite entries may overflow


def all_finite(tensors: Sequence[Tensor]) -> bool:
    """Return whether no entry of any tensor is NaN or infinite; an accelerator is waited for once."""
    if len(tensors) < 2 or tensors[0].is_cpu or len({tensor.device for tensor in tensors}) > 1:
        return all(map(finite, tensors))
    sums = torch.stack([tensor.sum(dtype=torch.float64) for tensor in tensors])
    return math.isfinite(sums.sum()) or all(map(finite, tensors))


class SkipPolicy:
    """The choice of ``on_nonfinite`` and how often it was applied."""

    def __init__(self, policy: str) -> None:
        self.policy = choice("on_nonfinite", policy, ("raise", "skip"))
        self.total = 0
        self.in_a_row = 0

    def skips(self, error: NonFiniteError) -> bool:
        """Count a failed step and return whether it is skipped; raise after too many consecutive ones."""
        if self.policy == "raise":
            return False
        if self.in_a_row == MOST_IN_A_ROW:
            message = f"{error}. Giving up after {MOST_IN_A_ROW} consecutive non-finite steps."
            raise NonFiniteError(message, objective=error.objective, step=error.step) from error
        self.total += 1
        self.in_a_row += 1
        logger.warning("skipped, %d so far: %s", self.total, error)
        return True


def non_finite_loss(losses: Tensor, step: int, counts: Sequence[float] | None = None) -> NonFiniteError | None:
    """Return the error for the first loss that is not finite; None where only losses with a count of 0 are not."""
    for s, value in enumerate(losses.tolist()):
        if not math.isfinite(value) and (counts is None or counts[s]):
            message = f"the loss of objective {s} is {value} at step {step}; nothing was changed. Check this batch, "
            message += "lower the learning rate, or guard the loss against overflow"
            if counts is None and math.isnan(value):
                message += "; if a batch may have no label for it, pass counts="
            return NonFiniteError(message, objective=s, step=step)
    return None


def non_finite_gradient(objective: int, step: int) -> NonFiniteError:
    message = f"the gradient of objective {objective} contains NaN or infinity at step {step} although its loss is "
    message += "finite; nothing was changed. Check for a square root, a norm or a logarithm at zero, and for overflow "
    return NonFiniteError(message + "in low precision", objective=objective, step=step)


def check_direction(direction: Sequence[Tensor | None], sq_norm: float, rows: Rows, weights: Tensor, step: int) -> None:
    """Raise NonFiniteError where the weighted sum of finite rows, or its cast to half precision, overflows."""
    narrow = [part for part in direction if part is not None and part.element_size() < 4]
    if not math.isfinite(sq_norm) or not rows.finite(narrow):
        s = int((weights.abs() * rows.sq_norms().sqrt()).argmax())
        kind = next(part.dtype for part in (*narrow, *direction) if part is not None)
        raise too_large(kind, step, s)


def too_large(kind: torch.dtype, step: int, objective: int) -> NonFiniteError:
    message = f"the direction is too large for {kind} at step {step}, most of it from objective {objective}; nothing "
    message += "was changed. Scale the losses down, or keep the parameters in float32"
    return NonFiniteError(message, objective=objective, step=step)
