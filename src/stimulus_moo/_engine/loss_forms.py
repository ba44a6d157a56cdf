"""What a step differentiates, and the rows that take the gradients: all S losses, or the one loss lambda . F."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from stimulus_moo._engine.differentiation import full_precision
from stimulus_moo._engine.objective import Evaluated
from stimulus_moo._engine.row import Row
from stimulus_moo._engine.rows import Rows
from stimulus_moo._engine.sketch import Sketch

if TYPE_CHECKING:
    from stimulus_moo._engine.store import Store

AnyRows = Rows | Row


class LossForm(ABC):
    """Which losses a transaction differentiates."""

    weighted = False  #: one loss, lambda . F
    sketched = False  #: the rows are a sketch, from which only the Gramian can be had

    @abstractmethod
    def rows(self, objectives: int) -> int:
        """Return how many rows there are, which is the number of passes per sample."""

    @abstractmethod
    def new_rows(self, store: Store, objectives: int) -> AnyRows:
        """Return empty rows for S objectives."""

    @abstractmethod
    def losses(
        self, evaluated: Evaluated, scales: Sequence[float] | None = None, *, every: bool = False
    ) -> Sequence[Tensor | None]:
        """Return the losses to differentiate, from the S losses of a piece times ``scales``.

        None stands for a loss that is not part of the piece, since its scale is 0; with ``every``, all take part.
        """

    def weights_for(self, objectives: int) -> Tensor | None:
        """Return lambda, if only lambda . F is differentiated."""
        return None

    def room(self, layout: Sequence[int]) -> list[int]:
        """Return the masks of these rows, from those of all S rows."""
        return list(layout)


class AllLosses(LossForm):
    """All S losses, one row for each."""

    def rows(self, objectives: int) -> int:
        """Return S."""
        return objectives

    def new_rows(self, store: Store, objectives: int) -> AnyRows:
        """Return the S x P matrix."""
        return store.new_rows(objectives)

    def losses(
        self, evaluated: Evaluated, scales: Sequence[float] | None = None, *, every: bool = False
    ) -> Sequence[Tensor | None]:
        """Return all."""
        if scales is None:
            return evaluated.graphs
        with torch.enable_grad():
            return [loss * c if c or every else None for loss, c in zip(evaluated.graphs, scales, strict=True)]


class SketchedLosses(AllLosses):
    """All S losses, whose gradients are projected to a few numbers each as they are computed."""

    sketched = True

    def new_rows(self, store: Store, objectives: int) -> AnyRows:
        """Return the S x k sketch."""
        objective, roots = store.objective, store.roots()
        own, placement = objective.model_parameters, objective.placement
        return Sketch(objective.parameters, objectives, objective.decisive, roots, own, placement)


class WeightedLoss(LossForm):
    """The one loss lambda . F, with the weights given or those that ``find`` returns for S objectives."""

    weighted = True

    def __init__(self, weights: Tensor | None = None, find: Callable[[int], Tensor] | None = None) -> None:
        self.weights, self._find = weights, find

    def rows(self, objectives: int) -> int:
        """Return 1."""
        return 1

    def new_rows(self, store: Store, objectives: int) -> AnyRows:
        """Return one row."""
        return store.new_row()

    def losses(
        self, evaluated: Evaluated, scales: Sequence[float] | None = None, *, every: bool = False
    ) -> Sequence[Tensor | None]:
        """Return lambda . F; terms without a scale are left out, since 0 times NaN is NaN."""
        vector = evaluated.vector
        weights = self.weights_for(len(vector))
        with torch.enable_grad(), full_precision({vector.device}):
            if scales is not None:
                present = [s for s, scale in enumerate(scales) if scale or every]
                if not present:
                    return [None]
                vector = torch.stack([evaluated.graphs[s] for s in present])
                weights = weights[present] * torch.tensor([scales[s] for s in present], dtype=weights.dtype)
            vector = vector.to(torch.promote_types(vector.dtype, torch.float32))
            return [vector @ weights.to(vector)]

    def weights_for(self, objectives: int) -> Tensor:
        """Return lambda."""
        if self.weights is None:
            assert self._find is not None
            self.weights = self._find(objectives)
        return self.weights

    def room(self, layout: Sequence[int]) -> list[int]:
        """Return 1 where any loss reaches."""
        return [int(mask > 0) for mask in layout]


ALL_LOSSES = AllLosses()
SKETCHED_LOSSES = SketchedLosses()
