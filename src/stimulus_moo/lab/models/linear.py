"""A linear model, for objectives whose solution is known or convex: ridge and logistic regression."""

from __future__ import annotations

from torch import nn

from stimulus_moo.options import positive_integer


class LinearModel(nn.Linear):
    """One linear map; returns an [n, outputs] tensor.

    ``outputs=1`` is one weight vector that all S objectives judge, each by its own targets or samples: they
    conflict. ``outputs=S`` gives each objective a row of its own: they meet only in what the losses add, such
    as a penalty on the whole matrix. There are no heads; ``shared_parameters`` is everything.

    Args:
        features: inputs per sample.
        outputs: predictions per sample.
        bias: whether to add an intercept.

    Raises:
        InvalidOption: ``features`` or ``outputs`` is not a positive integer.

    Example:
        Two ridge objectives on one weight vector.

        >>> import torch
        >>> model = LinearModel(3, bias=False)
        >>> inputs, targets = torch.ones(5, 3), torch.tensor([0.0, 1.0]).expand(5, 2)
        >>> losses = (model(inputs) - targets).square().mean(0) + 0.1 * model.weight.square().sum()
        >>> losses.shape
        torch.Size([2])
    """

    def __init__(self, features: int, outputs: int = 1, *, bias: bool = True) -> None:
        positive_integer("features", features)
        positive_integer("outputs", outputs)
        super().__init__(features, outputs, bias=bias)

    def shared_parameters(self) -> list[nn.Parameter]:
        """All parameters, so that a linear model can stand where a multi-head one does."""
        return list(self.parameters())
