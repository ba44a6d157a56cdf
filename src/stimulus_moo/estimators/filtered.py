"""The best mix of the recursive and the mini-batch estimator, by a scalar Kalman filter of the estimator's error."""

import math
from types import MappingProxyType

from stimulus_moo._engine.observation import Observation
from stimulus_moo.estimators.base import ErrorModel, Estimator, Update
from stimulus_moo.options import positive_integer, real


class Filtered(ErrorModel, Estimator):
    r"""Recursive differences mixed with the batch's own gradient, by the gain that minimises the predicted error.

    .. code-block:: text

        u_t = (1 - b)(u_{t-1} + D) + b g          D = grad f_A(x_t) - grad f_A(x_{t-1}),  g = grad f_A(x_t)
        E_t = (1 - b)^2 (E_{t-1} + v) + b^2 R + b (1 - b) v
        b   = clip((E_{t-1} + v/2) / (E_{t-1} + R), 0, 1)

    E is the variance of the estimate's error, v that of D and R that of g, all for the lambda-weighted sum of the rows,
    measured on the two halves of a batch, so the losses must be meaningful on half a batch; b stays 1 if it cannot be
    split. b = 0 is the recursive step of STIMULUS, b = 1 is SMGD. There are no anchors, so data may be a stream.

    Derivation: the error of u_t is (1 - b)(e + xi) + b zeta, with e the previous error, xi that of D and zeta that of
    g; e is independent of the batch. xi = zeta - zeta', with zeta' the batch's error at x_{t-1}. Both have variance R,
    so v = 2 R - 2 cov(zeta, zeta') and cov(xi, zeta) = v/2. This gives the recursion of E and its minimum over b.

    A second point doubles the cost of a step. It is skipped, with b = 1, while the batch's gradient alone makes more
    progress per evaluation. Progress is proportional to ||d||^2 / (||d||^2 + error), so two points pay off if
    R > ||grad||^2 + 2 E*. E* = v/2 + sqrt(v R - v^2/4) is v/2 above the stationary error of the filter, as a margin.
    Every ``probe`` steps both points are evaluated in any case, to keep v and R up to date.

    Args:
        probe: evaluate two points at least once in this many steps.
        memory: weight of the old value in the running means of v, R and ||d||^2.

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

    two_point = finite_sum = remembers = observes = prepares = True
    state_names = (*ErrorModel.state_names, "noise", "gain", "since")
    optional_names = MappingProxyType({**ErrorModel.optional_names, "noise": float})
    count_names, amount_names = ("since",), (*ErrorModel.amount_names, "noise", "gain")

    def __init__(self, probe: int = 8, memory: float = 0.9) -> None:
        self.probe = positive_integer("probe", probe)
        self.memory = real("memory", memory, low=0.0, high=1.0)
        self.rate = 1.0 - self.memory
        self.noise: float | None = None  # R
        self.gain = 1.0  # b of the last step
        self.since = 0  # steps since both points were evaluated

    def update(self, t: int) -> Update:
        """Mix with the best gain, or take the batch's gradient alone if a second point is not worth its cost."""
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
        """Update the running means of R and v."""
        if observation.variance is not None:
            if self.noise is None:
                self.error = observation.variance
            self.noise = self._mean(self.noise, observation.variance)
        super().learn(observation)

    def _pays(self, R: float, v: float) -> bool:
        settled = min(v / 2 + math.sqrt(max(v * R - v * v / 4, 0.0)), R)
        return max((self.signal or 0.0) - self.error, 0.0) + 2.0 * settled < R
