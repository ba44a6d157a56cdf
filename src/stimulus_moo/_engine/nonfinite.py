"""Steps that meet NaN or infinity: an error, or left out and counted."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence

from torch import Tensor

from stimulus_moo._engine.finite import finite
from stimulus_moo._engine.rows import Rows
from stimulus_moo.errors import NonFiniteError
from stimulus_moo.options import choice

logger = logging.getLogger("stimulus_moo")

POLICIES = ("raise", "skip")

#: So many steps may be skipped in a row; the next one raises, since a run that is NaN for ever must end.
MOST_IN_A_ROW = 10


class Skips:
    """What ``on_nonfinite`` says, and how often it was needed.

    >>> from stimulus_moo import NonFiniteError
    >>> error = NonFiniteError("the loss of objective 0 is nan at step 3", objective=0, step=3)
    >>> skips = Skips("skip")
    >>> skips.take(error), skips.total, Skips("raise").take(error)
    (True, 1, False)
    """

    def __init__(self, policy: str) -> None:
        self.policy = choice("on_nonfinite", policy, POLICIES)
        self.total = 0
        self.in_a_row = 0

    def take(self, error: NonFiniteError) -> bool:
        """Count a step that cannot be made and tell whether it is skipped.

        Raises:
            NonFiniteError: too many were skipped in a row.
        """
        if self.policy == "raise":
            return False
        if self.in_a_row == MOST_IN_A_ROW:
            raise NonFiniteError(
                f"{error}; the {MOST_IN_A_ROW} calls before it were skipped for the like: this does not pass by itself",
                objective=error.objective,
                step=error.step,
            ) from error
        self.total += 1
        self.in_a_row += 1
        logger.warning("skipped, %d so far: %s", self.total, error)
        return True

    def made(self) -> None:
        """Take note of a step that was made."""
        self.in_a_row = 0


def check_direction(
    direction: Sequence[Tensor | None], sq_norm: Tensor, rows: Rows, weights: Tensor, step: int
) -> None:
    """Raise NonFiniteError, naming the objective that counts most in it, where d_t does not fit its type.

    The rows are finite and wide; their weighted sum, or its form in the parameters' half precision, may not be.
    """
    narrow = [part for part in direction if part is not None and part.element_size() < 4]
    if math.isfinite(sq_norm) and all(map(finite, narrow)):
        return
    objective = int((weights.abs() * rows.sq_norms().sqrt()).argmax())
    kind = next(part.dtype for part in (*narrow, *direction) if part is not None)
    raise NonFiniteError(
        f"the direction is too large for {kind} at step {step}, most of it from objective {objective}; nothing was "
        "changed: scale the losses down, or keep the parameters in float32",
        objective=objective,
        step=step,
    )
