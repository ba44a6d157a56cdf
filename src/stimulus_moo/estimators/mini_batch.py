"""The plain stochastic gradient of every objective (SMGD, CR-MOGM, scalarisation)."""

from stimulus_moo.estimators.base import Estimator, Update


class MiniBatch(Estimator):
    """u_t^s = grad f_A^s(x_t), A = the step's batch.

    >>> import torch
    >>> from stimulus_moo import MiniBatch, MultiGradient
    >>> model = torch.nn.Linear(2, 2)
    >>> mg = MultiGradient(model, lambda m, x: m(x).square().mean(0), MiniBatch())
    >>> step = mg.backward(torch.randn(4, 2))
    >>> step.anchored, mg.samples, mg.gradients
    (False, 4, 4)
    """

    def update(self, t: int) -> Update:
        """Replace the rows by the batch's gradients."""
        return Update(keep=0.0, now=1.0)
