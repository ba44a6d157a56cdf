"""Rule 2 of the safeguard: no recursion that leads uphill."""

import logging
import math

from stimulus_moo._engine.observation import Observation
from stimulus_moo.state import Stateful

logger = logging.getLogger("stimulus_moo")

#: share of the old values in the fading sums, and how many standard deviations count as a rise
FADING, SURE = 0.9, 2.0


class Drift(Stateful):
    """Finds a recursion whose errors have added up to an estimate that leads uphill.

    .. code-block:: text

        r_t = (lambda-weighted loss of the batch at x_{t-1}  -  the same at x_t) / ||x_t - x_{t-1}||
        fall <- 0.9 fall + r_t,    variance <- 0.81 variance + r_t^2
        the recursion leads uphill where  fall < -2 sqrt(variance)

    No single step was too long, but the loss rises step after step by more than chance. The sums start again at every
    anchor and are not formed while the recursion is suspended.
    """

    state_names = ("fall", "variance")
    amount_names = ("variance",)

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Start again, at an anchor or while there is no recursion."""
        self.fall = self.variance = 0.0

    def uphill(self, seen: Observation) -> bool:
        """Add a recursive step to the sums; return whether the recursion leads uphill."""
        if seen.decrease is None or not seen.moved:
            return False
        fell = seen.decrease / seen.moved
        self.fall = FADING * self.fall + fell
        self.variance = FADING**2 * self.variance + fell**2
        found = self.fall < -SURE * math.sqrt(self.variance)
        if found:
            logger.debug("up to step %d the losses rise along the recursion's estimate", seen.step)
        return found
