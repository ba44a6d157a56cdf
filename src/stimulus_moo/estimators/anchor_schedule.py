"""When a recursive estimator anchors: every so many steps, or once its own error says that it should."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

from stimulus_moo._engine.observation import Observation
from stimulus_moo.options import positive_integer, real
from stimulus_moo.state import Stateful


class EveryPeriod(Stateful):
    """Anchor every ``period`` steps."""

    #: whether the schedule learns from what the steps show
    observes = False

    def __init__(self, period: Any) -> None:
        self.period = positive_integer("period", period)

    def due(self, t: int) -> bool:
        """Return whether step t is an anchor."""
        return t % self.period == 0

    def halves(self, t: int) -> bool:
        """Return whether the two halves of the batch are to be compared."""
        return False

    def prepare(self, moved: float) -> None:
        """Receive ||x_t - x_{t-1}||."""

    def learn(self, observation: Observation) -> None:
        """Receive what a step saw."""

    def record(self, sq_norm: float) -> None:
        """Receive ||d_t||^2."""


class WhenErrorGrows(EveryPeriod):
    r"""Anchor once the estimate's error is a tenth of ||d||^2, and the last anchor has been paid for.

    Every inner step adds the variance v of its batch's difference to the error of the estimate (the paper's Lemma 1
    bounds the same sum by L^2 ||x_t - x_{t-1}||^2 / |A|). v goes with ||x_t - x_{t-1}||^2; the ratio is measured on the
    two halves of every fourth batch, and the error is that of the lambda-weighted sum of the rows, which is what the
    step follows. An anchor that takes m evaluations waits until m (1 - share) / share have been spent on inner steps,
    so anchors never take more than ``share`` of all.

    Args:
        share: of the evaluations that anchors may take, in (0, 1).
        tolerance: of the error against ||d||^2.
    """

    state_names = ("error", "drift", "signal", "moved", "cost", "spent")
    optional_names = MappingProxyType({"drift": float, "signal": float})
    observes = True

    def __init__(self, share: float, tolerance: float = 0.1) -> None:
        self.share = real("share", share, low=0.0, high=1.0, open_low=True, open_high=True)
        self.tolerance = real("tolerance", tolerance, low=0.0, open_low=True)
        self.error = 0.0  # variance of the estimate
        self.drift: float | None = None  # v / ||x_t - x_{t-1}||^2
        self.signal: float | None = None  # running mean of ||d||^2
        self.moved = 0.0  # ||x_t - x_{t-1}||
        self.cost = 0  # evaluations of the last anchor
        self.spent = 0  # evaluations since

    def due(self, t: int) -> bool:
        """Tell whether step t is an anchor."""
        if self.drift is None or self.signal is None:
            wanted = True  # batches that cannot be cut in two: the share alone decides
        else:
            wanted = self.error + self.drift * self.moved**2 > self.tolerance * self.signal
        return wanted and self.spent >= self.cost * (1.0 - self.share) / self.share

    def halves(self, t: int) -> bool:
        """Tell whether the two halves of the batch are to be compared: at the first batches, then at every fourth."""
        return self.drift is None or t % 4 == 0

    def prepare(self, moved: float) -> None:
        """Take note of how far the parameters moved."""
        self.moved = moved

    def learn(self, observation: Observation) -> None:
        """Move the error and the account on."""
        if observation.anchored:
            self.error, self.cost, self.spent = 0.0, observation.gradients, 0
            return
        self.spent += observation.gradients
        if observation.change_variance is not None and observation.moved:
            found = observation.change_variance / observation.moved**2
            self.drift = found if self.drift is None else 0.9 * self.drift + 0.1 * found
        self.error += (self.drift or 0.0) * self.moved**2

    def record(self, sq_norm: float) -> None:
        """Move the mean of ||d||^2 on."""
        self.signal = sq_norm if self.signal is None else 0.9 * self.signal + 0.1 * sq_norm
