"""Rule 1 of the safeguard: no recursion over steps that are too long for it."""

import math
from types import MappingProxyType

from stimulus_moo._engine.observation import Observation
from stimulus_moo.state import Stateful


class LongSteps(Stateful):
    """Finds steps that are too long for the recursion.

    .. code-block:: text

        L <- max(0.9 L, ||D|| / ||x_t - x_{t-1}||)
        a step is too long where  ||x_{t+1} - x_t|| > ||d|| / L

    The error of the recursion grows with the square of the step's length and stays until the next anchor. Until then
    the estimate is the batch's own gradient, as in SMGD, which tolerates longer steps; the first of these steps and
    every fourth after it evaluate two points all the same. ||d|| is the larger of this step's and the running mean's:
    with momentum, d may vanish where the path turns. After the recursion has led uphill (``distrust``), ||d|| counts
    for at most half the next anchor's, doubled at every anchor: more may again be the recursion's error. Adam needs
    that, since its steps do not shrink with d.
    """

    state_names = ("smoothness", "anchor_norm", "belief")
    optional_names = MappingProxyType({"smoothness": float})
    amount_names = ("smoothness", "anchor_norm", "belief")

    def __init__(self) -> None:
        self.smoothness: float | None = None  # L; None before two points were compared
        self.anchor_norm = math.inf  # ||d|| of the last anchor
        self.belief = math.inf  # how many times as large ||d|| may have become since

    def too_long(self, length: float, norm: float) -> bool:
        """Return whether a step of this length is too long for the recursion, given ||d||."""
        trusted = min(norm, self.belief * self.anchor_norm)
        return self.smoothness is not None and length * self.smoothness > trusted

    def anchored(self, norm: float) -> None:
        """Record ||d|| of an anchor."""
        self.anchor_norm = norm
        self.belief *= 2.0

    def distrust(self) -> None:
        """Trust ||d|| less from here on, because the recursion has led uphill."""
        self.belief = 0.5

    def learn(self, seen: Observation) -> None:
        """Update L."""
        if seen.smoothness is not None and math.isfinite(seen.smoothness):
            self.smoothness = max(0.9 * (self.smoothness or 0.0), seen.smoothness)
