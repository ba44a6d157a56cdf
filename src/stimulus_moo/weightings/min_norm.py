"""Min-norm weights (MGDA): the shortest vector in the convex hull of the rows."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from stimulus_moo.errors import InvalidOption
from stimulus_moo.options import flag, reals
from stimulus_moo.weightings.base import Weighting, spread
from stimulus_moo.weightings.solver import FloatArray, solve


class MinNorm(Weighting):
    r"""Weights of the min-norm point in the convex hull of the rows.

    .. code-block:: text

        lambda_t = argmin over the simplex of  lambda^T G lambda,   G = U U^T

    solved exactly (Désidéri 2012; STIMULUS, eq. 2), so that d_t = U^T lambda_t satisfies <u^s, d_t> >= ||d_t||^2 for
    every objective s.

    Args:
        preference: S positive numbers; for an active objective s the first-order decrease <u^s, d_t> is proportional
            to ``preference[s]``. None treats all objectives alike.
        normalise: treat every row as if it had length 1. Zero rows are not changed.

    Both options replace G by G'_sr = c_s c_r G_sr with c_s = 1 / (preference_s ||u^s||); the weights are c_s lambda'_s
    scaled to sum to one. The rows U themselves are never rescaled.

    >>> import torch
    >>> MinNorm()(torch.tensor([[1.0, 0.0], [0.0, 3.0]], dtype=torch.float64))
    tensor([0.7500, 0.2500], dtype=torch.float64)
    """

    def __init__(self, preference: Sequence[float] | None = None, *, normalise: bool = False) -> None:
        self.preference: FloatArray | None = None
        if preference is not None:
            self.preference = np.array(reals("preference", preference, low=0.0, open_low=True))
        self.normalise = flag("normalise", normalise)

    def __call__(self, gramian: Tensor) -> Tensor:
        """Solve the problem exactly."""
        return self._solve(gramian, self.preference)

    def among(self, gramian: Tensor, present: Sequence[int]) -> Tensor:
        """Solve for the objectives that have rows, by their own preferences."""
        if self.preference is not None:
            _require_length(self.preference, len(gramian))
        chosen = None if self.preference is None else self.preference[list(present)]
        return spread(self._solve(gramian[present][:, present], chosen), present, len(gramian))

    def _solve(self, gramian: Tensor, preference: FloatArray | None) -> Tensor:
        matrix = gramian.double().numpy(force=True)
        if preference is None and not self.normalise:
            weights = solve(matrix)
        else:
            scales = self._scales(matrix, preference)
            weights = scales * solve(scales[:, None] * matrix * scales)
            weights /= weights.sum()
        result = torch.from_numpy(weights)
        return result if gramian.dtype is torch.float64 and gramian.is_cpu else result.to(gramian)

    def _scales(self, matrix: FloatArray, preference: FloatArray | None) -> FloatArray:
        scales = np.ones(len(matrix))
        if preference is not None:
            _require_length(preference, len(matrix))
            scales /= preference
        if self.normalise:
            lengths = np.sqrt(np.diag(matrix))
            scales /= np.where(lengths > 0, lengths, 1.0)
        return scales


def _require_length(preference: FloatArray, needed: int) -> None:
    if len(preference) != needed:
        raise InvalidOption(f"preference must hold one number per objective ({needed}), found {len(preference)}")
