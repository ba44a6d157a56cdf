"""The best mix of the recursive and the mini-batch estimator: a scalar Kalman filter of the estimator's own error."""

from __future__ import annotations

import math
from types import MappingProxyType

from stimulus_moo._engine.observation import Observation
from stimulus_moo.estimators.base import Estimator, Update
from stimulus_moo.options import positive_integer, real


class Filtered(Estimator):
    r"""Recursive differences, pulled back to the batch's own gradient by the gain that minimises the predicted error.

    .. code-block:: text

        u_t = (1 - b)(u_{t-1} + D) + b g          D = grad f_A(x_t) - grad f_A(x_{t-1}),  g = grad f_A(x_t)
        E_t = (1 - b)^2 (E_{t-1} + v) + b^2 R + b (1 - b) v
        b   = clip((E_{t-1} + v/2) / (E_{t-1} + R), 0, 1)

    E is the variance of the estimate's error, v that of D and R that of g, all for the lambda-weighted sum of the rows,
    measured on the two halves of a batch. b = 0 is the recursive step of STIMULUS, b = 1 is SMGD. There are no anchors,
    so streams will do.

    Why: the error of u_t is (1 - b)(e + xi) + b zeta, with e the error before, xi that of D and zeta that of g. The
    batch is independent of e. As xi = zeta - zeta', with zeta' the batch's error at x_{t-1}, where its variance is R
    too, v = 2 R - 2 cov(zeta, zeta'), so cov(xi, zeta) = R - cov(zeta, zeta') = v/2: hence the recursion of E, and its
    minimum over b.

    A second point costs as much again as the first. It is left out, and b is 1, while a step with the batch's gradient
    alone makes more progress for its cost: progress goes like ||d||^2 / (||d||^2 + error), so two points pay once
    R > ||grad||^2 + 2 E*, with E* = v/2 + sqrt(v R - v^2/4): that is v/2 above the error the filter settles at, so two
    points must be better by a margin. Every ``probe`` steps both points are evaluated all the same, to keep v, R and
    the smoothness up to date.

    The losses must make sense on half a batch, since its halves are evaluated apart. A batch that cannot be cut in two
    shows no noise; then b stays 1.

    Args:
        probe: evaluate two points at least once in so many steps.
        memory: share of the old value in the running means of v, R and ||d||^2.

    >>> import torch
    >>> from stimulus_moo import Filtered, MultiGradient
    >>> _ = torch.manual_seed(0)
    >>> model, x = torch.nn.Linear(2, 2), torch.randn(64, 2)
    >>> mg = MultiGradient(model, lambda m, x: m(x).square().mean(0), Filtered())
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> for batch in x.split(8):
    ...     step = mg.backward(batch)
    ...     optimizer.step()
    >>> 0 < mg.estimator.gain <= 1, mg.samples
    (True, 64)
    """

    two_point = True
    finite_sum = True
    remembers = True
    observes = True
    state_names = ("error", "noise", "drift", "signal", "gain", "moved", "since")
    optional_names = MappingProxyType({"noise": float, "drift": float, "signal": float})

    def __init__(self, probe: int = 8, memory: float = 0.9) -> None:
        self.probe = positive_integer("probe", probe)
        self.memory = real("memory", memory, low=0.0, high=1.0)
        self.error = 0.0  # E
        self.noise: float | None = None  # R
        self.drift: float | None = None  # v / ||x_t - x_{t-1}||^2
        self.signal: float | None = None  # running mean of ||d||^2
        self.gain = 1.0  # b of the last step
        self.moved = 0.0  # ||x_t - x_{t-1}||
        self.since = 0  # steps since both points were evaluated

    def prepare(self, moved: float) -> None:
        """Take note of how far the parameters moved: the variance of D goes with its square."""
        self.moved = moved

    def update(self, t: int) -> Update:
        """Mix with the best gain, or take the batch's gradient where a second point does not pay."""
        R = self.noise
        if t == 0 or R is None:
            self.gain, self.since, self.error = 1.0, 0, R or 0.0
            return Update(keep=0.0, now=1.0, halves=True)
        self.since += 1
        v = None if self.drift is None else min(self.drift * self.moved**2, 4.0 * R)
        if v is not None and self.since < self.probe and not self._pays(R, v):
            self.gain, self.error = 1.0, R
            return Update(keep=0.0, now=1.0)
        self.since = 0
        b = 0.5 if v is None else min((self.error + v / 2) / (self.error + R), 1.0) if self.error + R else 0.0
        v = 2.0 * R if v is None else v
        self.gain = b
        self.error = (1 - b) ** 2 * (self.error + v) + b**2 * R + b * (1 - b) * v
        return Update(keep=1.0 - b, now=1.0, before=b - 1.0, look_back=True, halves=True)

    def learn(self, observation: Observation) -> None:
        """Move the running means on."""
        if observation.variance is not None:
            if self.noise is None:
                self.error = observation.variance
            self.noise = self._mean(self.noise, observation.variance)
        if observation.change_variance is not None and observation.moved:
            self.drift = self._mean(self.drift, observation.change_variance / observation.moved**2)

    def record(self, sq_norm: float, *, anchored: bool) -> None:
        """Move the mean of ||d||^2 on."""
        self.signal = self._mean(self.signal, sq_norm)

    def _pays(self, R: float, v: float) -> bool:
        settled = min(v / 2 + math.sqrt(max(v * R - v * v / 4, 0.0)), R)
        return max((self.signal or 0.0) - self.error, 0.0) + 2.0 * settled < R

    def _mean(self, old: float | None, new: float) -> float:
        return new if old is None else self.memory * old + (1.0 - self.memory) * new
