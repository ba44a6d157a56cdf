"""Multi-layer perceptron with tanh activations and S scalar outputs, the model of the river-flow experiment."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from torch import nn

from stimulus_moo.errors import InvalidOption
from stimulus_moo.lab.models.heads import MultiHead
from stimulus_moo.options import positive_integer


class TanhMLP(MultiHead):
    """Perceptron with tanh after every hidden layer and S linear outputs; returns an [n, S] tensor.

    Row s of the last layer is the head of objective s; the layers before it are the trunk. Column s is the prediction
    for target s, without activation.

    Args:
        widths: inputs, hidden layers, outputs: at least three positive integers, the last one S. The default
            is the river-flow network: 64 inputs, three hidden layers, 8 targets.

    Raises:
        InvalidOption: fewer than three widths, or one that is not a positive integer.

    Example:
        >>> import torch
        >>> model = TanhMLP()
        >>> model(torch.zeros(5, 64)).shape
        torch.Size([5, 8])
        >>> TanhMLP((4, 16, 2))(torch.zeros(5, 4)).shape
        torch.Size([5, 2])
    """

    def __init__(self, widths: Sequence[int] = (64, 32, 16, 8, 8)) -> None:
        if not isinstance(widths, Sequence) or len(widths) < 3:
            raise InvalidOption(
                "widths must name the inputs, at least one hidden layer and the outputs, "
                f"found {widths!r}; use LinearModel for no hidden layer"
            )
        for position, width in enumerate(widths):
            positive_integer(f"widths[{position}]", width)
        *trunk, outputs = widths
        layers = [layer for pair in pairwise(trunk) for layer in (nn.Linear(*pair), nn.Tanh())]
        super().__init__(nn.Sequential(*layers), nn.Linear(trunk[-1], outputs))
