"""Models with a shared trunk and S heads, one per objective.

Scalar heads are one linear layer with S outputs, whose row s is the head of objective s: the [n, S] output needs one
loss call, whereas S concatenated modules would all be visited by every backward pass. Heads with several outputs are
separate modules, ``TupleHeads``: the backward pass of a loss visits only its own head.
"""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor, nn

from stimulus_moo.errors import InvalidOption


class TupleHeads(nn.ModuleList):
    """Apply S modules to the same features; returns a tuple of outputs, one per objective.

    Args:
        heads: the modules, at least one, objective 0 first.

    Raises:
        InvalidOption: no module was given.

    Example:
        >>> import torch
        >>> heads = TupleHeads([nn.Linear(4, 10), nn.Linear(4, 3)])
        >>> [tuple(output.shape) for output in heads(torch.zeros(5, 4))]
        [(5, 10), (5, 3)]
    """

    def __init__(self, heads: Iterable[nn.Module]) -> None:
        super().__init__(heads)
        if not len(self):
            raise InvalidOption("heads must hold at least one module, found none; pass one per objective")

    def forward(self, features: Tensor) -> tuple[Tensor, ...]:
        """Apply every head to ``features``."""
        return tuple(head(features) for head in self)


class MultiHead(nn.Module):
    """A trunk that all objectives share, followed by their heads.

    Base class of the lab's multi-head models; it also combines any trunk with any heads.

    Args:
        trunk: module from a batch of inputs to features.
        heads: module from features to all S outputs, ``TupleHeads`` or, for scalars, ``nn.Linear(features, S)``;
            the model returns its output.

    Example:
        >>> import torch
        >>> model = MultiHead(nn.Sequential(nn.Linear(6, 4), nn.Tanh()), nn.Linear(4, 3))
        >>> model(torch.zeros(5, 6)).shape
        torch.Size([5, 3])
        >>> [tuple(p.shape) for p in model.shared_parameters()]
        [(4, 6), (4,)]
    """

    def __init__(self, trunk: nn.Module, heads: nn.Module) -> None:
        super().__init__()
        self.trunk = trunk
        self.heads = heads

    def forward(self, inputs: Tensor) -> Tensor | tuple[Tensor, ...]:
        """Outputs of all heads: a tuple of length S from ``TupleHeads``, [n, S] from a linear layer."""
        outputs: Tensor | tuple[Tensor, ...] = self.heads(self.trunk(inputs))
        return outputs

    def shared_parameters(self) -> list[nn.Parameter]:
        """Parameters of the trunk. Pass them as ``shared=`` to compute the weights from their gradients only."""
        return list(self.trunk.parameters())
