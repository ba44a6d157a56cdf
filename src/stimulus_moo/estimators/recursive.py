"""The path-integrated recursive estimator of STIMULUS."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from stimulus_moo._engine.observation import Observation
from stimulus_moo.anchors import Anchor, as_anchor
from stimulus_moo.estimators.base import DIFFERENCE, ErrorModel, Estimator, Update
from stimulus_moo.options import positive_integer_or_auto, real

TOLERANCE = 0.1  # largest error of the estimate with period="auto", relative to ||d||^2


class Recursive(Estimator):
    """Path-integrated differences from periodic anchors (STIMULUS, Algorithm 1).

    .. code-block:: text

        t mod q = 0:   u_t^s = mean of grad f_sj(x_t) over the anchor           (the step's own batch is not used)
        otherwise:     u_t^s = u_{t-1}^s + grad f_A^s(x_t) - grad f_A^s(x_{t-1})        A = the step's batch

    x_{t-1} is the value of the parameters at the previous call, so any optimizer, schedule, clipping or skipped step
    is valid.

    Args:
        anchor: an iterable of batches that can be iterated again (a DataLoader over the whole data set: STIMULUS,
            STIMULUS-M), or an ``AdaptiveBatch`` (STIMULUS+, STIMULUS-M+).
        period: q, a positive integer; the theory uses q = batch size = ceil(sqrt(n)). ``"auto"`` anchors when the
            estimate's error, measured on the two halves of the batches, is no longer small relative to ||d||^2.
        share: with ``"auto"``, the largest fraction of all evaluations that anchors may use.

    >>> import torch
    >>> from stimulus_moo import MultiGradient, Recursive
    >>> model, data = torch.nn.Linear(2, 2), torch.randn(6, 2)
    >>> mg = MultiGradient(model, lambda m, x: m(x).square().mean(0), Recursive([data], period=10), check=False)
    >>> mg.backward(data[:2]).anchored, mg.backward(data[2:4]).anchored
    (True, False)
    >>> mg.samples, mg.gradients  # 6 for the anchor, then 2 samples at two points each
    (8, 10)
    """

    two_point = finite_sum = remembers = True

    def __init__(self, anchor: Iterable[Any] | Anchor, period: int | str, *, share: float = 0.5) -> None:
        self.anchor: Anchor = as_anchor(anchor)
        self.period = positive_integer_or_auto("period", period)
        self.schedule = WhenErrorGrows(share) if self.period == "auto" else None
        self.observes = self.prepares = self.schedule is not None
        self.state_names = ("anchor", "schedule") if self.observes else ("anchor",)  # type: ignore[misc]
        self._restart = Update(keep=0.0, now=1.0, anchor=self.anchor)

    def prepare(self, moved: float) -> None:
        """Tell the schedule how far the parameters moved."""
        if self.schedule is not None:
            self.schedule.prepare(moved)

    def update(self, t: int) -> Update:
        """Take an anchor if one is due, else add the batch's difference."""
        schedule = self.schedule
        if t == 0 or (t % int(self.period) == 0 if schedule is None else schedule.due()):
            return self._restart
        return replace(DIFFERENCE, halves=True) if schedule is not None and schedule.halves(t) else DIFFERENCE

    def learn(self, observation: Observation) -> None:
        """Tell the schedule and the anchor what the step observed."""
        if self.schedule is not None:
            self.schedule.learn(observation)
        if observation.variance is not None and not observation.anchored:
            self.anchor.observe(observation.variance * observation.samples)

    def record(self, sq_norm: float, *, anchored: bool) -> None:
        """Tell the schedule and the anchor ||d_t||^2."""
        if self.schedule is not None:
            self.schedule.record(sq_norm, anchored=anchored)
        if self.anchor.adapts:
            self.anchor.record(sq_norm, anchored=anchored)


class WhenErrorGrows(ErrorModel):
    """Anchor once the estimate's error exceeds ||d||^2 / 10 and enough inner steps have followed the last anchor.

    Every inner step adds the variance of its batch's difference to the error of the estimate (Lemma 1 of the paper
    bounds the same sum by L^2 ||x_t - x_{t-1}||^2 / |A|). After an anchor of m evaluations the next one waits until
    inner steps have used m (1 - share) / share evaluations, so anchors use at most ``share`` of all evaluations.
    """

    state_names = (*ErrorModel.state_names, "cost", "spent")
    count_names = ("cost", "spent")

    def __init__(self, share: float) -> None:
        self.share = real("share", share, low=0.0, high=1.0, open_low=True, open_high=True)
        self.cost = self.spent = 0  # evaluations of the last anchor, and since it

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
