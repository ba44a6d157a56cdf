"""The recursive momentum estimator of MoCo+."""

from stimulus_moo.estimators.base import Estimator, Update
from stimulus_moo.options import Bounded, Schedule


class Storm(Estimator):
    """Moving average corrected by the same batch's gradient at the previous point (MoCo+, after STORM).

    .. code-block:: text

        y_0 = g_0(x_0);    y_t = g_t(x_t) + (1 - beta_t) (y_{t-1} - g_t(x_{t-1}))

    The public MoCo+ code never applies the correction, because of a misspelt attribute; this one does. beta = 0 is the
    recursive step without anchors, beta = 1 the plain mini-batch.

    Args:
        beta: a number in [0, 1] or a function of t.

    >>> import torch
    >>> from stimulus_moo import MultiGradient, ProjectedDescent, Storm
    >>> model = torch.nn.Linear(2, 2)
    >>> losses, weighting = lambda m, x: m(x).square().mean(0), ProjectedDescent(gamma=0.1)
    >>> mg = MultiGradient(model, losses, Storm(beta=0.1), weighting, check=False)
    >>> _ = mg.backward(torch.randn(4, 2)), mg.backward(torch.randn(4, 2))
    >>> mg.samples, mg.gradients  # one point at first, two points afterwards
    (8, 12)
    """

    two_point = finite_sum = remembers = True

    def __init__(self, beta: Schedule) -> None:
        self.beta = Bounded("beta", beta, 0.0, 1.0)

    def update(self, t: int) -> Update:
        """Correct the average by the gradient at the previous point."""
        if t == 0:
            return Update(keep=0.0, now=1.0)
        keep = 1.0 - self.beta(t)
        return Update(keep=keep, now=1.0, before=-keep)
