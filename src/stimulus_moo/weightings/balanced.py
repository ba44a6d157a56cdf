"""Balanced weights: min-norm weights that do not depend on the scales of the losses."""

import math
from collections.abc import Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stimulus_moo.errors import InvalidOption, StateMismatch
from stimulus_moo.options import real, reals
from stimulus_moo.state import short_text
from stimulus_moo.weightings.base import Weighting
from stimulus_moo.weightings.solver import FloatArray, solve


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

    Args:
        memory: weight of the old values in running means of N and of log n_s over the solves, a number in [0, 1).
            Gramians of mini-batches are noisy. Unlike ``Averaged``, these means do not depend on the scales of the
            losses either, nor on the unit of the metric.
        preference: S positive numbers; for an active objective s the first-order decrease <u^s, d_t> is proportional to
            ``preference[s]`` times the length of its row. None treats all objectives alike, and so do equal numbers.
            With p their ratios to their geometric mean, N_sr is divided by p_s p_r, and lambda_s by p_s.

    >>> import torch
    >>> rows = torch.tensor([[1.0, 0.0], [0.0, 1.0]], dtype=torch.float64)
    >>> Balanced()(rows @ rows.T).tolist()
    [0.5, 0.5]
    >>> rows[1] *= 100.0  # as if the second loss were multiplied by 100: its weight becomes smaller
    >>> [round(weight, 6) for weight in Balanced()(rows @ rows.T).tolist()]
    [5.0, 0.05]
    """

    state_names = ("cosines", "logarithms")
    optional_names = MappingProxyType({"cosines": Tensor, "logarithms": Tensor})

    def __init__(self, memory: float = 0.0, preference: Sequence[float] | None = None) -> None:
        self.memory = real("memory", memory, low=0.0, high=1.0, open_high=True)
        self.preference: FloatArray | None = None
        if preference is not None:
            given = np.array(reals("preference", preference, low=0.0, open_low=True))
            self.preference = given / np.exp(np.log(given).mean())
        self.cosines: Tensor | None = None  # running mean of N; NaN where there was no row yet
        self.logarithms: Tensor | None = None  # running mean of log n, likewise

    def check_state(self, state: Any, path: str = "") -> None:
        """Raise StateMismatch if ``state`` does not fit, including the shapes and types of the means."""
        super().check_state(state, path)
        for name, dimensions in (("cosines", 2), ("logarithms", 1)):
            found = state[name]
            right = found is None or (found.dim() == dimensions and found.dtype == torch.float64)
            if not right or (found is not None and len(set(found.shape)) != 1):
                where, needed = f"{path or self.kind}.{name}", "a square matrix" if dimensions == 2 else "a vector"
                raise StateMismatch(f"{where} must be None or {needed} of torch.float64, found {short_text(found)}")

    def __call__(self, gramian: Tensor) -> Tensor:
        """Solve the problem exactly."""
        return self.among(gramian, range(len(gramian)))

    def among(self, gramian: Tensor, present: Sequence[int]) -> Tensor:
        """Solve for the objectives that have rows; the means of the others stay as they are."""
        matrix = gramian.double().numpy(force=True)
        lengths = np.sqrt(np.maximum(np.diag(matrix), 0.0))
        there = [s for s in present if lengths[s] > 0.0]
        weights = np.zeros(len(matrix))
        if there:
            cosines, logarithms = self._means(matrix, lengths, there)
            shares = self._shares(len(matrix))[there]
            weights[there] = solve(cosines / shares[:, None] / shares) / shares * np.exp(logarithms.mean() - logarithms)
        return torch.from_numpy(weights).to(gramian)

    def _shares(self, objectives: int) -> FloatArray:
        if self.preference is None:
            return np.ones(objectives)
        if len(self.preference) != objectives:
            raise InvalidOption(
                f"preference must hold one number per objective ({objectives}), found {len(self.preference)}"
            )
        return self.preference

    def _means(self, matrix: FloatArray, lengths: FloatArray, there: list[int]) -> tuple[FloatArray, FloatArray]:
        """Return N and log n of the objectives with rows, averaged if there is a memory."""
        own = lengths[there]
        cosines, logarithms = matrix[np.ix_(there, there)] / own[:, None] / own, np.log(own)
        if not self.memory:
            return cosines, logarithms
        if self.cosines is None or self.logarithms is None:
            self.cosines = torch.full(matrix.shape, math.nan, dtype=torch.float64)
            self.logarithms = torch.full((len(matrix),), math.nan, dtype=torch.float64)
        block, means, logs = np.ix_(there, there), self.cosines.numpy().copy(), self.logarithms.numpy().copy()
        means[block] = self._mean(means[block], cosines)
        logs[there] = self._mean(logs[there], logarithms)
        self.cosines, self.logarithms = torch.from_numpy(means), torch.from_numpy(logs)
        return means[block], logs[there]

    def _mean(self, old: FloatArray, new: FloatArray) -> FloatArray:
        return np.where(np.isnan(old), new, self.memory * old + (1.0 - self.memory) * new)
