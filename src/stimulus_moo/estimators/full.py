"""The full gradient of every objective, every iteration (MGD)."""

from collections.abc import Iterable
from typing import Any

from stimulus_moo.anchors import Anchor, as_anchor
from stimulus_moo.estimators.base import Estimator, Update


class Full(Estimator):
    """u_t^s = mean of grad f_sj(x_t) over the anchor, at every iteration; the step's own batch is not used.

    Args:
        anchor: as for ``Recursive``.

    >>> import torch
    >>> from stimulus_moo import Full, MultiGradient
    >>> model, data = torch.nn.Linear(2, 2), torch.randn(6, 2)
    >>> mg = MultiGradient(model, lambda m, x: m(x).square().mean(0), Full([data[:4], data[4:]]))
    >>> step = mg.backward()
    >>> step.anchored, mg.samples, mg.gradients
    (True, 6, 6)
    """

    finite_sum = True
    state_names = ("anchor",)

    def __init__(self, anchor: Iterable[Any] | Anchor) -> None:
        self.anchor = as_anchor(anchor)

    def update(self, t: int) -> Update:
        """Restart from the anchor."""
        return Update(keep=0.0, now=1.0, anchor=self.anchor)
