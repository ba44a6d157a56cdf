"""Weights that lead to the Pareto point on a ray: where the preferred losses are equal."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from stimulus_moo.errors import InvalidOption
from stimulus_moo.options import reals
from stimulus_moo.weightings.base import LossAware, spread
from stimulus_moo.weightings.quadratic import minimise_quadratic
from stimulus_moo.weightings.solver import FloatArray

LEAST = 1e-3  # weight that every objective keeps: solutions are properly Pareto-optimal where the ray misses the front


class Ray(LossAware):
    r"""Weights of a descent direction for the largest preferred loss, max over s of r_s (f_s - z_s).

    .. code-block:: text

        v_s     = r_s (f_s - z_s),   H_st = r_s r_t G_st
        kappa   = max_s H_ss / max_s |v_s|
        nu      = argmin of  nu^T H nu / 2 - kappa nu^T v   over the simplex with nu_s >= 0.001
        lambda_s = r_s nu_s

    The minimum is the Pareto point on the ray {f : r_s (f_s - z_s) equal for all s}, on fronts of any shape, also
    concave ones, where no fixed weights lead to it (weighted Chebyshev problem; as an exact Pareto search, Mahajan and
    Rajan 2020). This is the dual of the prox-linear step min over d of  max_s (v_s + <r_s u^s, d>) + ||d||^2 / (2 eta)
    with eta = 1 / kappa: d = -eta U^T lambda decreases the largest v_s to first order, and vanishes only where this
    problem is stationary. The differences of the v_s decay at the rate lr kappa. Since ||grad f||^2 <= 2 L f for a
    loss of smoothness L without negative values, kappa is at most 2 L: a learning rate below 1 / L, which is stable for
    the losses, is stable for their differences. Where the ray does not meet the front, the weight of at least 0.001
    leads to a point that no other one dominates.

    Args:
        preference: r, one positive number per objective; a larger one asks for a smaller loss.
        reference: z, one number per objective; default 0. Losses are measured from it.

    >>> import torch
    >>> gramian = torch.tensor([[1.0, -1.0], [-1.0, 1.0]], dtype=torch.float64)  # on the front: opposite gradients
    >>> [round(w, 3) for w in Ray([1.0, 1.0])(gramian, torch.tensor([0.5, 0.5])).tolist()]  # and on the ray
    [0.5, 0.5]
    >>> [round(w, 3) for w in Ray([1.0, 1.0])(gramian, torch.tensor([0.6, 0.4])).tolist()]  # f_0 is too large
    [0.583, 0.417]
    """

    def __init__(self, preference: Sequence[float], reference: Sequence[float] | None = None) -> None:
        self.preference = np.array(reals("preference", preference, low=0.0, open_low=True))
        self.reference = np.zeros_like(self.preference)
        if reference is not None:
            self.reference = np.array(reals("reference", reference))
            _require_length("reference", self.reference, len(self.preference))

    def __call__(self, gramian: Tensor, losses: Tensor) -> Tensor:  # type: ignore[override]
        """Solve the problem exactly."""
        return self.among(gramian, range(len(gramian)), losses)

    def among(self, gramian: Tensor, present: Sequence[int], losses: Tensor) -> Tensor:  # type: ignore[override]
        """Solve for the objectives that have rows."""
        _require_length("preference", self.preference, len(gramian))
        chosen = list(present)
        r, z = self.preference[chosen], self.reference[chosen]
        rows = gramian[chosen][:, chosen].double().numpy(force=True) * r[:, None] * r
        values = r * (losses[chosen].double().numpy(force=True) - z)
        weights = torch.from_numpy(r * _descent(rows, values))
        return spread(weights, chosen, len(gramian)).to(gramian)


def _descent(gramian: FloatArray, values: FloatArray) -> FloatArray:
    """Return nu of ``Ray``, by the substitution nu = 0.001 + (1 - 0.001 S) x."""
    size = len(values)
    least = min(LEAST, 0.5 / size)
    share, ones = 1.0 - least * size, np.ones(size)
    largest = float(np.abs(values).max())
    kappa = float(gramian.diagonal().max()) / largest if largest > 0.0 else 0.0
    gains = (kappa * values - least * (gramian @ ones)) / share
    found = least + share * minimise_quadratic(gramian, gains, ones)
    return np.asarray(found / found.sum())


def _require_length(name: str, found: FloatArray, needed: int) -> None:
    if len(found) != needed:
        raise InvalidOption(f"{name} must hold one number per objective ({needed}), found {len(found)}")
