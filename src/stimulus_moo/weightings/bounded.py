"""Weights that minimise some objectives subject to upper bounds on the others."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from stimulus_moo.errors import InvalidOption
from stimulus_moo.options import natural_number, real
from stimulus_moo.weightings.base import LossAware, spread
from stimulus_moo.weightings.quadratic import minimise_quadratic

WIDTH = 0.05  # a loss that is farther from its bound, relative to it, approaches it at the speed of its own gradient
LEAST = 0.1  # share of the free objectives' weights that is equal, so that a stationary one cannot stop the others


class Bounded(LossAware):
    r"""Weights of a descent direction for the free objectives that respects upper bounds on the others.

    .. code-block:: text

        c_s     = f_s - b_s,   kappa_s = G_ss / max(|c_s|, 0.05 |f_s|, 0.05 |b_s|)     for the bounded objectives
        lambda, mu = argmin of  ||sum_j lambda_j u^j + sum_s mu_s u^s||^2 / 2 - sum_s mu_s kappa_s c_s
                     over  lambda on the simplex of the F free objectives, lambda_j >= 0.1 / F,  and  mu >= 0;
                     then scaled to sum to one

    The multipliers of sequential quadratic programming with the identity as Hessian. A violation decays at the rate
    lr kappa_s, an objective inside its bound approaches it at most at that rate, and d vanishes at points only that
    satisfy the conditions of Karush, Kuhn and Tucker: the free objectives are Pareto-stationary along the bounds that
    are active. The rule does not need a convex front. Where a bound cannot be met, its weight grows until the bounded
    objective itself is minimised.

    Args:
        bounds: the largest value of each bounded objective, by its number, from 0. One objective must be free.

    >>> import torch
    >>> gramian = torch.tensor([[1.0, -0.5], [-0.5, 1.0]], dtype=torch.float64)
    >>> rule = Bounded({1: 2.0})
    >>> [round(weight, 3) for weight in rule(gramian, torch.tensor([0.5, 0.1])).tolist()]  # far inside the bound
    [1.0, 0.0]
    >>> weights = rule(gramian, torch.tensor([0.5, 2.5], dtype=torch.float64))  # beyond: it must fall
    >>> [round(weight, 3) for weight in weights.tolist()], bool((gramian @ weights)[1] > 0)
    ([0.4, 0.6], True)
    """

    def __init__(self, bounds: Mapping[int, float]) -> None:
        if not isinstance(bounds, Mapping) or not bounds:
            raise InvalidOption(f"bounds must map at least one objective to its largest value, found {bounds!r}")
        self.bounds = {natural_number("an objective of bounds", s): real(f"bounds[{s}]", b) for s, b in bounds.items()}

    def __call__(self, gramian: Tensor, losses: Tensor) -> Tensor:  # type: ignore[override]
        """Solve the problem exactly."""
        return self.among(gramian, range(len(gramian)), losses)

    def among(self, gramian: Tensor, present: Sequence[int], losses: Tensor) -> Tensor:  # type: ignore[override]
        """Solve for the objectives that have rows."""
        if max(self.bounds) >= len(gramian) or len(self.bounds) >= len(gramian):
            raise InvalidOption(
                f"bounds must name fewer than all {len(gramian)} objectives, counted from 0, found {self.bounds}"
            )
        chosen = list(present)
        free = np.array([float(s not in self.bounds) for s in chosen])
        if not free.any():  # none of the free ones has a label in this step
            return spread(torch.ones(len(chosen), dtype=torch.float64) / len(chosen), chosen, len(gramian)).to(gramian)
        matrix = gramian[chosen][:, chosen].double().numpy(force=True)
        values, squares = losses[chosen].double().numpy(force=True), matrix.diagonal()
        bounds = np.array([self.bounds.get(s, 0.0) for s in chosen])
        over = values - bounds
        size = np.maximum(np.abs(over), WIDTH * np.maximum(np.abs(values), np.abs(bounds)))
        kappa = np.where(size > 0.0, squares / np.where(size > 0.0, size, 1.0), 0.0)
        gains = np.where(free > 0.0, 0.0, kappa * over)
        base = LEAST * free / free.sum()  # lambda = base + (1 - LEAST) x
        scale = np.where(free > 0.0, 1.0 - LEAST, 1.0)
        rest = scale * (gains - matrix @ base)
        found = base + scale * minimise_quadratic(scale[:, None] * matrix * scale, rest, free)
        return spread(torch.from_numpy(found / found.sum()), chosen, len(gramian)).to(gramian)
