"""Rows of which every process has some columns: products are sums over the processes."""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from stimulus_moo._engine.norms import distance
from stimulus_moo._engine.rows import Rows
from stimulus_moo._engine.storage import Storage
from stimulus_moo.distributed.group import Group


class SplitRows(Rows):
    """S rows over the model's parameters, of which this process has some columns; products are collectives."""

    def __init__(
        self, group: Group, parameters: Sequence[Tensor], objectives: int, decisive: Sequence[bool], storage: Storage
    ) -> None:
        super().__init__(parameters, objectives, decisive, storage)
        self.group = group

    def _products(self, roots: Sequence[Tensor | None] | None) -> Tensor:
        """Return U U^T, or U D^-1 U^T, the sum over the processes' columns."""
        return self._sum_over_columns(super()._products(roots))

    def sq_norms(self) -> Tensor:
        """Return ||u^s||^2 for every s."""
        return self._sum_over_columns(super().sq_norms())

    def first_non_finite(self) -> int | None:
        """Return the first objective whose row holds NaN or infinity in any process, or None."""
        own = super().first_non_finite()
        found = self.group.stack(torch.tensor([-1 if own is None else own])).flatten().tolist()
        return min((value for value in found if value >= 0), default=None)

    def _sum_over_columns(self, values: Tensor) -> Tensor:
        return self.group.sum(values)


class PlacedRows(SplitRows):
    """Rows over this process's shards of the parameters, as ``fully_shard`` has placed them.

    Gradients arrive summed over the processes and split in the same way, so nothing but products is sent. ``replicas``
    processes have the same columns.
    """

    def __init__(
        self,
        group: Group,
        replicas: int,
        parameters: Sequence[Tensor],
        objectives: int,
        decisive: Sequence[bool],
        storage: Storage,
    ) -> None:
        super().__init__(group, parameters, objectives, decisive, storage)
        self.replicas = replicas

    def finite(self, gradients: Iterable[Tensor]) -> bool:
        """Return whether gradients have no NaN or infinity in any process."""
        return not self.group.any(not super().finite(gradients))

    def mix(self, weights: Tensor) -> tuple[list[Tensor | None], float]:
        """Return this process's part of d, and ||d||^2."""
        mixed, own = super().mix(weights)
        return mixed, self._total(own)

    def distance(self, other: Rows, weights: Tensor) -> float:
        """Return ||sum_s weights[s] (u^s - v^s)|| for other rows v."""
        pairs = zip(Rows.mix(self, weights)[0], Rows.mix(other, weights)[0], strict=True)
        shared = [(a, b) for a, b in pairs if a is not None and b is not None]
        return float(self._total(distance([a for a, _ in shared], [b for _, b in shared]) ** 2) ** 0.5)

    def _total(self, value: float) -> float:
        return float(self._sum_over_columns(torch.tensor([value], dtype=torch.float64)))

    def _sum_over_columns(self, values: Tensor) -> Tensor:
        return super()._sum_over_columns(values) / self.replicas
