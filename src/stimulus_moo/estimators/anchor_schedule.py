"""When ``Recursive(period="auto")`` takes an anchor: once its own error requires one."""

from stimulus_moo._engine.observation import Observation
from stimulus_moo.estimators.base import ErrorModel
from stimulus_moo.options import real

TOLERANCE = 0.1  # largest error of the estimate, relative to ||d||^2


class WhenErrorGrows(ErrorModel):
    """Anchor once the estimate's error exceeds ||d||^2 / 10 and enough inner steps have followed the last anchor.

    Every inner step adds the variance of its batch's difference to the error of the estimate (Lemma 1 of the paper
    bounds the same sum by L^2 ||x_t - x_{t-1}||^2 / |A|). After an anchor of m evaluations the next one waits until
    inner steps have used m (1 - share) / share evaluations, so anchors use at most ``share`` of all evaluations.

    Args:
        share: largest fraction of the evaluations that anchors may use, in (0, 1).
    """

    state_names = (*ErrorModel.state_names, "cost", "spent")

    def __init__(self, share: float) -> None:
        self.share = real("share", share, low=0.0, high=1.0, open_low=True, open_high=True)
        self.cost = 0  # evaluations of the last anchor
        self.spent = 0  # evaluations since the last anchor

    def due(self) -> bool:
        """Return whether the next step is an anchor."""
        if self.drift is None or self.signal is None:
            wanted = True  # batches that cannot be split: the share alone decides
        else:
            wanted = self.error + self.drift * self.moved**2 > TOLERANCE * self.signal
        return wanted and self.spent >= self.cost * (1.0 - self.share) / self.share

    def halves(self, t: int) -> bool:
        """Return whether to compare the two halves of the batch: until the noise is known, then every fourth step."""
        return self.drift is None or t % 4 == 0

    def learn(self, observation: Observation) -> None:
        """Update the error and the number of evaluations."""
        if observation.anchored:
            self.error, self.cost, self.spent = 0.0, observation.gradients, 0
            return
        self.spent += observation.gradients
        super().learn(observation)
        self.error += (self.drift or 0.0) * self.moved**2
