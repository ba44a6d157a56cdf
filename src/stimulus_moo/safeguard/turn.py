"""How much a step turns the gradient round, which says how long steps may be."""

from __future__ import annotations

import math

from stimulus_moo._engine.observation import Observation
from stimulus_moo.options import real
from stimulus_moo.state import Stateful


class Turn(Stateful):
    """sqrt(mean ||D||^2 / mean ||d||^2): the change of a batch's gradient in a step against the step's own gradient.

    D is the lambda-weighted difference of the batch's gradients at x_t and x_{t-1}. For plain gradient descent it is
    about eta L, and above 2 gradient descent diverges on a quadratic. Noise in d makes it smaller.

    Args:
        memory: share of the old values in the running means.
    """

    state_names = ("changes", "lengths")

    def __init__(self, memory: float = 0.8) -> None:
        self.memory = real("memory", memory, low=0.0, high=1.0)
        self.changes = 0.0  # mean of ||D||^2
        self.lengths = 0.0  # mean of ||d||^2

    @property
    def value(self) -> float | None:
        """None before a batch was seen at two points."""
        return math.sqrt(self.changes / self.lengths) if self.lengths else None

    def learn(self, seen: Observation) -> bool:
        """Take in what a step saw; return whether it saw its batch at two points."""
        if seen.change is None or not seen.sq_norm or not math.isfinite(seen.change):
            return False
        self.changes = self.memory * self.changes + (1.0 - self.memory) * seen.change**2
        self.lengths = self.memory * self.lengths + (1.0 - self.memory) * seen.sq_norm
        return True
