"""Balanced weights: min-norm weights that do not depend on the scales of the losses."""

import numpy as np
import torch
from torch import Tensor

from stimulus_moo.weightings.base import Weighting
from stimulus_moo.weightings.solver import solve


class Balanced(Weighting):
    r"""Min-norm weights of the rows at unit length, scaled to the geometric mean of the rows' lengths.

    .. code-block:: text

        n_s      = sqrt(G_ss),   N_sr = G_sr / (n_s n_r)
        lambda'  = argmin over the simplex of  lambda^T N lambda
        lambda_s = g lambda'_s / n_s,   g = (product of the n_s)^(1/S)

    A loss that is multiplied by a constant gets a weight divided by it: d_t changes only by a common factor, which an
    optimizer such as Adam does not see. ``MinNorm`` follows the loss with the smallest gradient, and so does
    ``MinNorm(normalise=True)``, whose weights sum to one: its step shrinks with that gradient. Here the step has the
    length of a typical gradient, and vanishes at Pareto stationary points only.

    Objectives with a zero row get weight 0, so that they cannot stop the others. The weights do not sum to one.

    >>> import torch
    >>> rows = torch.tensor([[1.0, 0.0], [0.0, 1.0]], dtype=torch.float64)
    >>> Balanced()(rows @ rows.T).tolist()
    [0.5, 0.5]
    >>> rows[1] *= 100.0  # as if the second loss were multiplied by 100: its weight becomes smaller
    >>> [round(weight, 6) for weight in Balanced()(rows @ rows.T).tolist()]
    [5.0, 0.05]
    """

    def __call__(self, gramian: Tensor) -> Tensor:
        """Solve the problem exactly."""
        matrix = gramian.double().numpy(force=True)
        lengths = np.sqrt(np.maximum(np.diag(matrix), 0.0))
        there = lengths > 0.0
        weights = np.zeros(len(matrix))
        if there.any():
            own = lengths[there]
            mean = np.exp(np.log(own).mean())
            weights[there] = mean * solve(matrix[np.ix_(there, there)] / own[:, None] / own) / own
        return torch.from_numpy(weights).to(gramian)
