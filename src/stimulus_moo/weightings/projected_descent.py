"""Weights by projected gradient descent on the min-norm problem (MoCo)."""

import math
from collections.abc import Sequence
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from stimulus_moo.options import Bounded, Schedule, choice, flag, real
from stimulus_moo.weightings.base import Weighting, check_weights, spread
from stimulus_moo.weightings.solver import project_simplex


class ProjectedDescent(Weighting):
    """One projected gradient step per call, from the previous weights.

    .. code-block:: text

        lambda_t = Proj_simplex(lambda_{t-1} - gamma_t (Y Y^T + rho I) lambda_{t-1}),    lambda_{-1} = 1/S

    The weighting of MoCo and MoCo+ (Fernando et al. 2023).

    Args:
        gamma: step size, a number >= 0 or a function of t.
        rho: regularisation, >= 0.
        projection: ``"simplex"`` as in the paper; ``"softmax"`` as in several public codes, which is not a projection.
        normalise: use rows of length 1, d_t = sum_s lambda^s y^s / ||y^s||. Public codes normalise each stochastic
            gradient instead, before it is tracked.

    >>> import torch
    >>> step = ProjectedDescent(gamma=0.1)
    >>> step(torch.tensor([[1.0, 0.0], [0.0, 3.0]], dtype=torch.float64))
    tensor([0.5500, 0.4500], dtype=torch.float64)
    """

    state_names = ("t", "previous")
    optional_names = MappingProxyType({"previous": Tensor})
    count_names = ("t",)

    def __init__(
        self, gamma: Schedule, rho: float = 0.0, *, projection: str = "simplex", normalise: bool = False
    ) -> None:
        self.gamma = Bounded("gamma", gamma, 0.0, math.inf)
        self.rho = real("rho", rho, low=0.0)
        self.projection = choice("projection", projection, ("simplex", "softmax"))
        self.normalise = flag("normalise", normalise)
        self.t = 0
        self.previous: Tensor | None = None  # lambda_{t-1}

    def check_state(self, state: Any, path: str = "") -> None:
        """Raise StateMismatch if ``state`` does not fit, including the type of the last weights."""
        super().check_state(state, path)
        check_weights(state["previous"], f"{path or self.kind}.previous")

    def __call__(self, gramian: Tensor) -> Tensor:
        """Take one step and return the new weights."""
        weights, scales = self._step(gramian, self._last(gramian))
        self.previous = weights
        return scales * weights

    def among(self, gramian: Tensor, present: Sequence[int]) -> Tensor:
        """Take a step with the weights of the objectives that have rows, scaled to sum to one."""
        last = self._last(gramian)
        own, share = last[present], float(last[present].sum())
        start = own / share if share > 0 else torch.full_like(own, 1.0 / len(present))
        weights, scales = self._step(gramian[present][:, present], start)
        self.previous = last.index_copy(0, torch.tensor(present), share * weights)
        return spread(scales * weights, present, len(gramian))

    def _last(self, gramian: Tensor) -> Tensor:
        count = len(gramian)
        return torch.full((count,), 1.0 / count, dtype=torch.float64) if self.previous is None else self.previous

    def _step(self, gramian: Tensor, last: Tensor) -> tuple[Tensor, Tensor]:
        gramian = gramian.detach().double().cpu()
        lengths = gramian.diagonal().sqrt()
        scales = torch.where(lengths > 0, 1.0 / lengths, 1.0) if self.normalise else torch.ones_like(lengths)
        problem = scales[:, None] * gramian * scales
        moved = last - self.gamma(self.t) * (problem @ last + self.rho * last)
        self.t += 1
        return project_simplex(moved) if self.projection == "simplex" else torch.softmax(moved, dim=0), scales
