"""Smoothed weights (CR-MOGM): a running average of another weighting's weights."""

from collections.abc import Sequence
from types import MappingProxyType
from typing import Any

from torch import Tensor

from stimulus_moo.options import Bounded, Schedule
from stimulus_moo.weightings.base import GramianToWeights, Weighting, as_weighting, check_weights, checked, spread


class Smoothed(Weighting):
    """Exponential average of the weights of another weighting.

    .. code-block:: text

        lambda_t = alpha_t lambda_{t-1} + (1 - alpha_t) lambda_hat_t,    lambda_0 = lambda_hat_0

    CR-MOGM (Zhou et al. 2022) is ``Smoothed(MinNorm(), alpha)``.

    Args:
        weighting: gives lambda_hat_t; any weighting or callable.
        alpha: a number in [0, 1] or a function of t; the paper's recipe is ``lambda t: 1 - lr(t) / lr(0)``.

    >>> import torch
    >>> from stimulus_moo import MinNorm
    >>> smoothed = Smoothed(MinNorm(), alpha=0.5)
    >>> smoothed(torch.tensor([[1.0, 0.0], [0.0, 1.0]], dtype=torch.float64)).tolist()
    [0.5, 0.5]
    >>> smoothed(torch.tensor([[1.0, 0.0], [0.0, 3.0]], dtype=torch.float64)).tolist()
    [0.625, 0.375]
    """

    state_names = ("t", "previous", "weighting")
    optional_names = MappingProxyType({"previous": Tensor})
    count_names = ("t",)

    def __init__(self, weighting: GramianToWeights, alpha: Schedule) -> None:
        self.weighting = as_weighting(weighting)
        self.alpha = Bounded("alpha", alpha, 0.0, 1.0)
        self.deterministic, self.uses_losses = self.weighting.deterministic, self.weighting.uses_losses
        self.t = 0
        self.previous: Tensor | None = None  # lambda_{t-1}

    def check_state(self, state: Any, path: str = "") -> None:
        """Raise StateMismatch if ``state`` does not fit, including the type of the last weights."""
        super().check_state(state, path)
        check_weights(state["previous"], f"{path or self.kind}.previous")

    def __call__(self, gramian: Tensor, *losses: Tensor) -> Tensor:
        """Return the average and store it."""
        return self._smooth(checked(self.weighting(gramian, *losses), len(gramian)))

    def among(self, gramian: Tensor, present: Sequence[int], *losses: Tensor) -> Tensor:
        """Return the part of the average that belongs to the objectives with rows; all of it is stored."""
        average = self._smooth(self.weighting.among(gramian, present, *losses))
        return spread(average[present], present, len(gramian))

    def _smooth(self, weights: Tensor) -> Tensor:
        if self.previous is not None:
            alpha = self.alpha(self.t)
            weights = alpha * self.previous + (1.0 - alpha) * weights
        self.t, self.previous = self.t + 1, weights
        return weights
