"""The path-integrated recursive estimator of STIMULUS."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from stimulus_moo.anchors import Anchor, as_anchor
from stimulus_moo.estimators.base import Estimator, Update
from stimulus_moo.options import positive_integer


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
        period: q, a positive integer; theory takes ceil(sqrt(n)) and a batch of as many samples.

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
    state_names = ("anchor",)

    def __init__(self, anchor: Iterable[Any] | Anchor, period: int) -> None:
        self.anchor = as_anchor(anchor)
        self.period = positive_integer("period", period)

    def update(self, t: int) -> Update:
        """Anchor every ``period`` iterations, else add the batch's difference."""
        if t % self.period == 0:
            return Update(keep=0.0, now=1.0, anchor=self.anchor)
        return Update(keep=1.0, now=1.0, before=-1.0)
