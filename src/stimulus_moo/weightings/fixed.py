"""Fixed weights (scalarisation), the baseline of every comparison."""

from collections.abc import Sequence

import torch
from torch import Tensor

from stimulus_moo.errors import InvalidOption
from stimulus_moo.options import reals
from stimulus_moo.weightings.base import Weighting


class Fixed(Weighting):
    """The same weights at every step: d_t is the gradient of the weighted sum of the losses, in one backward pass.

    Args:
        weights: S non-negative numbers, not all zero, used as given; None means 1/S each.

    >>> import torch
    >>> Fixed([0.3, 0.7])(torch.eye(2, dtype=torch.float64)).tolist()
    [0.3, 0.7]
    """

    needs_rows = False

    def __init__(self, weights: Sequence[float] | Tensor | None = None) -> None:
        self.weights: Tensor | None = None
        if weights is not None:
            numbers = reals("weights", weights, low=0.0)
            if not any(numbers):
                raise InvalidOption(f"weights must hold a positive number, found {numbers}")
            self.weights = torch.tensor(numbers, dtype=torch.float64)

    def __call__(self, gramian: Tensor) -> Tensor:
        """Return the weights; the Gramian is not used."""
        return self.constant(len(gramian)).to(gramian)

    def among(self, gramian: Tensor, present: Sequence[int]) -> Tensor:
        """Return the weights; rows are not used."""
        return self(gramian)

    def constant(self, objectives: int) -> Tensor:
        """Return the weights."""
        if self.weights is None:
            return torch.full((objectives,), 1.0 / objectives, dtype=torch.float64)
        if len(self.weights) != objectives:
            found = len(self.weights)
            raise InvalidOption(f"weights must hold one number per objective ({objectives}), found {found}")
        return self.weights
