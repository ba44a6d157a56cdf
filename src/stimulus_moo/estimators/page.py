"""The loopless recursive estimator, which anchors at random (PAGE-MOO)."""

from collections.abc import Iterable
from typing import Any

import torch

from stimulus_moo.anchors import Anchor, as_anchor
from stimulus_moo.estimators.base import DIFFERENCE, Estimator, Update
from stimulus_moo.options import Bounded, Schedule, seed_number


class Page(Estimator):
    """An anchor with probability p, else the recursive step (PAGE, Li et al. 2021, for several objectives).

    .. code-block:: text

        t = 0 or with probability p_t:   u_t^s = mean of grad f_sj(x_t) over the anchor
        otherwise:                       u_t^s = u_{t-1}^s + grad f_A^s(x_t) - grad f_A^s(x_{t-1})

    Args:
        anchor: as for ``Recursive``.
        probability: p, a number in [0, 1] or a function of t.
        seed: of the random choice.

    >>> import torch
    >>> from stimulus_moo import MultiGradient, Page
    >>> model, data = torch.nn.Linear(2, 2), torch.randn(6, 2)
    >>> mg = MultiGradient(model, lambda m, x: m(x).square().mean(0), Page([data], probability=0.0), check=False)
    >>> [mg.backward(data[:2]).anchored for _ in range(3)]
    [True, False, False]
    """

    two_point = finite_sum = remembers = True
    state_names = ("anchor", "generator")

    def __init__(self, anchor: Iterable[Any] | Anchor, probability: Schedule, *, seed: int = 0) -> None:
        self.anchor = as_anchor(anchor)
        self.probability = Bounded("probability", probability, 0.0, 1.0)
        self.generator = torch.Generator().manual_seed(seed_number(seed))

    def update(self, t: int) -> Update:
        """Draw whether to anchor."""
        if t == 0 or torch.rand((), generator=self.generator).item() < self.probability(t):
            return Update(keep=0.0, now=1.0, anchor=self.anchor)
        return DIFFERENCE
