"""Linear model, for convex objectives such as ridge and logistic regression."""

from __future__ import annotations

from torch import nn

from stimulus_moo.options import positive_integer


class LinearModel(nn.Linear):
    """One linear map; returns an [n, outputs] tensor.

    With ``outputs=1``, all S objectives share one weight vector and conflict. With ``outputs=S``, each objective has
    its own row, and they interact only through common terms such as a penalty on the whole matrix. There are no heads;
    ``shared_parameters`` returns all parameters.

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
        """All parameters; same interface as the multi-head models."""
        return list(self.parameters())
