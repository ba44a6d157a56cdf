"""Validation on held-out queries after every epoch, for early stopping, floors and the best model."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from stimulus_moo import Progress
from stimulus_moo.ranking.errors import InvalidRankingData
from stimulus_moo.ranking.lists import QueryDataset
from stimulus_moo.ranking.metrics import ndcg
from stimulus_moo.ranking.preferences import EpsilonConstraint


def scores_of(model: torch.nn.Module, blocks: Iterable[Tensor]) -> NDArray[np.float64]:
    """Return the concatenated scores of blocks of features."""
    with torch.no_grad():
        return np.concatenate([model(block).numpy() for block in blocks]).astype(np.float64)


class Validation:
    """Callback of ``fit`` that measures NDCG@k on held-out queries and keeps the best model.

    The criterion is the NDCG of one label, or the product over the labels, which is the hypervolume of the single point
    with respect to the origin. With floors, a model that meets them all is better than one that does not; among the
    others, the one closest to its floors is best.

    Args:
        data: the held-out queries.
        k: cutoff of NDCG.
        criterion: a label, or None for the hypervolume.
        every: steps between two measurements.
        patience: measurements without improvement before training stops; None for never.
        size: queries per batch.
        floors: minimum NDCG by label.
        constraint: receives every measurement.
    """

    def __init__(
        self,
        data: QueryDataset,
        *,
        k: int,
        criterion: int | None,
        every: int,
        patience: int | None,
        size: int,
        floors: Mapping[int, float],
        constraint: EpsilonConstraint | None,
    ) -> None:
        self.data, self.k, self.criterion, self.every, self.patience = data, k, criterion, every, patience
        self.size, self.floors, self.constraint = size, floors, constraint
        self.labels = data.labels[data.rows()]
        self.qid = data.queries.query[data.rows()]
        self.records: list[dict[str, Any]] = []
        self.best: dict[str, Any] = {}
        self.best_record: dict[str, Any] = {}
        self._best_value = (-math.inf, -math.inf)
        self._waited = 0
        missing = np.flatnonzero(~(self.labels > 0).any(axis=0))
        if len(missing):
            raise InvalidRankingData(
                f"label {missing[0]} has no relevant document in the {len(data)} validation queries, so its NDCG is "
                "undefined; raise validation_fraction, or change random_state"
            )

    def __call__(self, progress: Progress) -> bool:
        """Measure after every epoch; return whether to stop."""
        if progress.step % self.every:
            return False
        self.measure(progress.model, progress.record)
        return self.patience is not None and self._waited >= self.patience

    def measure(self, model: torch.nn.Module, record: Mapping[str, Any]) -> None:
        """Measure a model, update the constraint, and keep the model if it is the best."""
        scores = scores_of(model, (batch.features for batch in self.data.batches(self.size)))
        found = ndcg(self.labels, scores, self.qid, k=self.k)
        value = self._value(found)
        if self.constraint is not None:
            self.constraint.measure(found.tolist())
        counts = {name: record[name] for name in ("step", "samples", "gradients", "passes")}
        self.records.append({**counts, "ndcg": found.tolist(), "floors_kept": not value[0]})
        self._waited += 1
        if value > self._best_value:
            self._best_value, self._waited = value, 0
            self.best, self.best_record = copy.deepcopy(model.state_dict()), self.records[-1]

    def _value(self, found: NDArray[np.float64]) -> tuple[float, float]:
        short = max((max(0.0, floor - found[label]) for label, floor in self.floors.items()), default=0.0)
        return -float(short), float(np.prod(found) if self.criterion is None else found[self.criterion])
