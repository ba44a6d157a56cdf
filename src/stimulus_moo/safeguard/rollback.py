"""Rule 4 of the safeguard: a step that made a loss much worse is taken back."""

import math
from types import MappingProxyType
from typing import Any

from stimulus_moo._engine.observation import Observation
from stimulus_moo._engine.running_means import running_means
from stimulus_moo.errors import StateMismatch
from stimulus_moo.state import Stateful, check_numbers

RISE, MARGIN = 0.5, 0.1  # how much a loss of the same batch may rise, relative to its value and to its running mean
DOUBTFUL = 3.0  # a loss this many times its running mean is evaluated at x_{t-1} too,
HIGH = 0.3  # if it is also this share of its first value: small losses of single batches vary by more than that
SHORTEN, TAKEN_BACK = 0.25, 0.8  # factors of a step and the learning rate, and of c, each time a step is taken back
PATIENCE = 16  # how often one step is taken back at most
RECOVER = 1.03  # growth of the learning rate per step after a step was taken back
BRISK, SHORT = 3, 0.7  # it grows BRISK times as fast while ``turn`` is below SHORT
MEMORY = 0.9  # of the running means
HURRY, TINY = 1.5, 0.1  # and by the factor HURRY besides while ``turn`` is below TINY


class Rollback(Stateful):
    """Decides which steps are taken back, and how the learning rate recovers.

    .. code-block:: text

        take the step back where, for some objective s,
            f_A^s(x_t) > f_A^s(x_{t-1}) + 0.5 |f_A^s(x_{t-1})| + 0.1 (running mean of |f^s|)
        or where a loss or a gradient at x_t is not finite

    A step at one point is evaluated at x_{t-1} too where a loss is above three times its running mean and above 0.3 of
    its first value.

    The parameters go to x_{t-1} + (x_t - x_{t-1}) / 4, the optimizer's state is cleared, and the batch is evaluated
    again; the k-th time in a row only 1/4^k of what was left remains, and the last time, or where the parameters are
    not finite, nothing. The learning rate is shortened as the step was and recovers by 3% per step, faster while
    ``turn`` is small, up to c times what the optimizer says; c becomes 4/5 of the share that was too long.
    """

    state_names = ("level", "first", "scale", "taken_back")
    optional_names = MappingProxyType({"level": list, "first": list})
    count_names, amount_names = ("taken_back",), ("scale",)

    def __init__(self) -> None:
        self.level: list[float] | None = None  # running means of |f^s|; None before the first step
        self.first: list[float] | None = None  # |f^s| of the first step
        self.scale = 1.0  # what the learning rate is multiplied by besides c
        self.taken_back = 0  # how many steps were taken back

    def check_state(self, state: Any, path: str = "") -> None:
        """Raise StateMismatch if ``state`` does not fit, including the numbers of the level."""
        super().check_state(state, path)
        if (state["level"] is None) != (state["first"] is None):
            raise StateMismatch(
                f"{path or self.kind}.first must be None if and only if level is, found {state['first']!r}"
            )
        if state["level"] is not None:
            check_numbers(state["level"], f"{path or self.kind}.level")
            check_numbers(state["first"], f"{path or self.kind}.first", len(state["level"]))

    def doubtful(self, seen: Observation) -> bool:
        """Return whether a one-point loss is so high that the batch should be evaluated at x_{t-1} too."""
        if self.level is None or seen.before is not None or seen.anchored:
            return False
        values = zip(seen.losses.tolist(), self.level, self.first or self.level, strict=True)
        return any(now > max(DOUBTFUL * mean, HIGH * first) for now, mean, first in values)

    def reason(self, seen: Observation) -> str | None:
        """Return why the step to x_t should be taken back; None where it may stay."""
        if seen.moved is not None and not math.isfinite(seen.moved):
            return "the parameters are not finite"
        if seen.before is None:
            return None
        level = self.level or [0.0] * len(seen.losses)
        for s, (was, now) in enumerate(zip(seen.before.tolist(), seen.losses.tolist(), strict=True)):
            if now > was + RISE * abs(was) + MARGIN * level[s]:
                return f"the loss of objective {s} rose from {was:.4g} to {now:.4g} on the same batch"
        return None

    def left(self, retries: int) -> float:
        """Return what remains of the step when it is taken back for the k-th time in a row."""
        return SHORTEN**retries if retries < PATIENCE else 0.0

    def shorten(self, retries: int) -> float:
        """Shorten the learning rate after so many retries; return the factor for c."""
        lowered = self.scale * TAKEN_BACK**retries
        self.taken_back += retries
        self.scale = SHORTEN ** (retries * (retries + 1) / 2)
        return lowered

    def recover(self, turn: float | None) -> None:
        """Let the learning rate recover after a step of the optimizer."""
        brisk = turn is not None and turn < SHORT
        self.scale = min(1.0, self.scale * RECOVER ** (BRISK if brisk else 1))

    def learn(self, seen: Observation, turn: float | None) -> None:
        """Update the running means, and let the rate recover fast while ``turn`` is tiny."""
        if turn is not None and turn < TINY:
            self.scale = min(self.scale * HURRY, 1.0)
        losses = [abs(loss) for loss in seen.losses.tolist()]
        first = running_means(None, losses, MEMORY)
        self.first = (
            first
            if self.first is None
            else [old if math.isfinite(old) else new for old, new in zip(self.first, first, strict=True)]
        )
        self.level = running_means(self.level, losses, MEMORY)
