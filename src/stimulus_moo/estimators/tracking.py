"""The tracking (moving average) estimator of MoCo."""

from stimulus_moo.estimators.base import Estimator, Update
from stimulus_moo.options import Bounded, Schedule


class Tracking(Estimator):
    """Moving average of stochastic gradients (MoCo, Fernando et al. 2023).

    .. code-block:: text

        y_t = y_{t-1} - beta_t (y_{t-1} - g_t),    y_{-1} = 0,    g_t^s = grad f_A^s(x_t)

    Args:
        beta: a number in [0, 1] or a function of t.

    >>> import torch
    >>> from stimulus_moo import MultiGradient, ProjectedDescent, Tracking
    >>> model = torch.nn.Linear(2, 2)
    >>> mg = MultiGradient(model, lambda m, x: m(x).square().mean(0), Tracking(beta=0.5), ProjectedDescent(gamma=0.1))
    >>> step = mg.backward(torch.randn(4, 2))
    >>> mg.samples, mg.gradients
    (4, 4)
    """

    remembers = True

    def __init__(self, beta: Schedule) -> None:
        self.beta = Bounded("beta", beta, 0.0, 1.0)

    def update(self, t: int) -> Update:
        """Average; the rows start at zero."""
        beta = self.beta(t)
        return Update(keep=(1.0 - beta) if t else 0.0, now=beta)
