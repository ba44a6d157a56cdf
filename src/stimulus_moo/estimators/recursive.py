"""The path-integrated recursive estimator of STIMULUS."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from stimulus_moo._engine.observation import Observation
from stimulus_moo.anchors import Anchor, as_anchor
from stimulus_moo.estimators.anchor_schedule import EveryPeriod, WhenErrorGrows
from stimulus_moo.estimators.base import Estimator, Update
from stimulus_moo.options import positive_integer_or_auto


class Recursive(Estimator):
    """Path-integrated differences from periodic anchors (STIMULUS, Algorithm 1).

    .. code-block:: text

        t mod q = 0:   u_t^s = mean of grad f_sj(x_t) over the anchor           (the step's own batch is not used)
        otherwise:     u_t^s = u_{t-1}^s + grad f_A^s(x_t) - grad f_A^s(x_{t-1})        A = the step's batch

    x_{t-1} is where the parameters stood at the previous call, so any optimizer, schedule, clipping or skipped step
    stays valid.

    Args:
        anchor: an iterable of batches that can be iterated again (a DataLoader over the whole data set: STIMULUS,
            STIMULUS-M), or an ``AdaptiveBatch`` (STIMULUS+, STIMULUS-M+).
        period: q, a positive integer; theory takes ceil(sqrt(n)) and a batch of as many samples. ``"auto"``: anchor
            when the estimate's error, as the two halves of the batches show it, is no longer small against ||d||^2.
        share: with ``"auto"``, the most of all evaluations that anchors may take.

    >>> import torch
    >>> from stimulus_moo import MultiGradient, Recursive
    >>> model, data = torch.nn.Linear(2, 2), torch.randn(6, 2)
    >>> mg = MultiGradient(model, lambda m, x: m(x).square().mean(0), Recursive([data], period=10))
    >>> mg.backward(data[:2]).anchored, mg.backward(data[2:4]).anchored
    (True, False)
    >>> mg.samples, mg.gradients  # 6 for the anchor, then 2 samples at two points each
    (8, 10)
    """

    two_point = True
    finite_sum = True
    remembers = True
    state_names = ("anchor", "schedule")

    def __init__(self, anchor: Iterable[Any] | Anchor, period: int | str, *, share: float = 0.5) -> None:
        self.anchor: Anchor = as_anchor(anchor)
        self.period = positive_integer_or_auto("period", period)
        self._every = self.period if isinstance(self.period, int) else None
        self.schedule = WhenErrorGrows(share) if self.period == "auto" else EveryPeriod(self.period)
        self.observes = self.schedule.observes
        self._restart = Update(keep=0.0, now=1.0, anchor=self.anchor)
        self._difference = Update(keep=1.0, now=1.0, before=-1.0, recursive=True)

    def prepare(self, moved: float) -> None:
        """Tell the schedule how far the parameters moved."""
        self.schedule.prepare(moved)

    def update(self, t: int) -> Update:
        """Anchor when the schedule says so, else add the batch's difference."""
        if t == 0 or (self.schedule.due(t) if self._every is None else t % self._every == 0):
            return self._restart
        return replace(self._difference, halves=True) if self.observes and self.schedule.halves(t) else self._difference

    def learn(self, observation: Observation) -> None:
        """Tell the schedule and the anchor what was seen."""
        self.schedule.learn(observation)
        if observation.variance is not None and not observation.anchored:
            self.anchor.observe(observation.variance * observation.samples)

    def record(self, sq_norm: float, *, anchored: bool) -> None:
        """Tell the schedule and the anchor ||d_t||^2."""
        if self.observes:
            self.schedule.record(sq_norm)
        if self.anchor.adapts:
            self.anchor.record(sq_norm, anchored=anchored)
