"""One trunk and S heads: the shape of a model whose S losses share most, but not all, of its parameters.

Scalar heads are one linear layer with S outputs, its row s the head of objective s: as a tensor [n, S] the
outputs take one loss call, and S modules joined by a concatenation would make every backward pass visit all
of them. Heads with several outputs are modules of their own, ``TupleHeads``: a loss reaches only its head.
"""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor, nn

from stimulus_moo.errors import InvalidOption


class TupleHeads(nn.ModuleList):
    """S modules on the same features; their outputs as a tuple, one per objective.

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

    The base of the lab's multi-head models, and a way to put heads on a trunk of your own.

    Args:
        trunk: from a batch of inputs to features.
        heads: from features to all S outputs, ``TupleHeads`` or, for scalars, ``nn.Linear(features, S)``;
            what it returns is what the model returns.

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
        """Parameters of the trunk, to be passed as ``shared=`` so that they alone decide the weights."""
        return list(self.trunk.parameters())
