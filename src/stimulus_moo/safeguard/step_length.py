"""Rule 3 of the safeguard: shorter steps where a step turns the gradient around."""

import logging
import math

from stimulus_moo._engine.observation import Observation
from stimulus_moo.state import Stateful

logger = logging.getLogger("stimulus_moo")

MEMORY = 0.8  # share of the old values in the running means of ``turn``
LONG, SHORT = 1.5, 0.7  # the ``turn`` above which steps are shortened and below which they may become longer again
QUICK, LEAST, MOST = 3.0, 0.003, 0.2  # relative change of c at step t: QUICK / t, within [LEAST, MOST]


class StepLength(Stateful):
    """Adapts a factor c <= 1 of the learning rate.

    .. code-block:: text

        D    = sum_s lambda^s (grad f_A^s(x_t) - grad f_A^s(x_{t-1}))
        turn = sqrt(mean of ||D||^2 / mean of ||d_{t-1}||^2)      about eta L for plain gradient descent
        c   <- c (1 - 3/t) while turn > 1.5,   c (1 + 3/t) while turn < 0.7       3/t kept within [0.003, 0.2]

    Gradient descent on a quadratic diverges where turn exceeds 2. Noise in d makes turn smaller.
    """

    state_names = ("changes", "lengths", "t", "factor", "shortened")
    count_names, amount_names = ("t", "shortened"), ("changes", "lengths", "factor")

    def __init__(self) -> None:
        self.changes = self.lengths = 0.0  # means of ||D||^2 and ||d||^2
        self.t = 0
        self.factor = 1.0  # c
        self.shortened = 0  # how often c was lowered

    @property
    def turn(self) -> float | None:
        """Change of the batch's gradient in a step, relative to its size; None before it was observed."""
        return math.sqrt(self.changes / self.lengths) if self.lengths else None

    def learn(self, seen: Observation) -> float | None:
        """Adapt c to a finished step; return ``turn`` if this step compared two points."""
        self.t += 1
        if seen.change is None or not seen.sq_norm or not math.isfinite(seen.change):
            return None
        self.changes = MEMORY * self.changes + (1.0 - MEMORY) * seen.change**2
        self.lengths = MEMORY * self.lengths + (1.0 - MEMORY) * seen.sq_norm
        turn = self.turn
        assert turn is not None
        rate = min(max(QUICK / self.t, LEAST), MOST)
        if turn < SHORT:
            self.factor = min(self.factor * (1.0 + rate), 1.0)
        elif turn > LONG:
            self.factor *= 1.0 - rate
            self.shortened += 1
            logger.debug("step %d turned the gradient by %.2g times its size; steps are shortened", seen.step, turn)
        return turn
