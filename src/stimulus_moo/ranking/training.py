"""Training of a ranker with ``stimulus_moo.fit``."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from stimulus_moo import METHODS, History, StimulusWarning, fit, measure
from stimulus_moo.ranking.lists import QueryBatch, QueryDataset
from stimulus_moo.ranking.losses import RankingLoss
from stimulus_moo.ranking.missing import labelled_queries, skip_missing
from stimulus_moo.ranking.preferences import EpsilonConstraint, preferred_weighting
from stimulus_moo.ranking.scorer import Scorer, smoothness
from stimulus_moo.ranking.validation import Validation

_ENTRIES = 1 << 23  # maximum number of feature entries per batch of an anchor or an evaluation
_ADAM_LR = 0.01


@dataclass(frozen=True)
class Plan:
    """Checked settings of one training run."""

    loss: RankingLoss
    hidden: Sequence[int]
    method: str
    lr: float | None
    momentum: float
    batch_size: int | None
    period: int | None
    epochs: int
    max_gradients: int | None
    max_passes: int | None
    preference: Sequence[float] | None
    k: int
    criterion: int | None
    patience: int | None
    progress: bool
    seed: int


@dataclass(frozen=True)
class Trained:
    """Result of training: the scorer, and the numbers of the run."""

    scorer: Scorer
    history: History
    validation: list[dict[str, Any]]
    best: dict[str, Any]
    samples: int
    gradients: int
    passes: int
    losses: list[float]
    stationarity: float
    lr: float
    stopped: str


def train(plan: Plan, data: QueryDataset, held_out: QueryDataset | None, floors: Mapping[int, float]) -> Trained:
    """Train a scorer. torch's global random state is restored afterwards."""
    labels = data.labels.shape[1]
    size = pass_size(data)
    lr = default_lr(plan.method, data) if plan.lr is None else plan.lr
    weighting = preferred_weighting(plan.method, plan.preference, labels)
    constraint = EpsilonConstraint(floors, weighting) if floors else None
    batch = math.isqrt(len(data) - 1) + 1 if plan.batch_size is None else plan.batch_size
    every = max(1, len(data) // batch)
    monitor = None
    if held_out is not None:
        monitor = _validation(plan, held_out, every=every, size=size, floors=floors, constraint=constraint)

    incomplete = bool(np.isnan(data.labels[data.rows()]).any())
    loss, counts = (skip_missing(plan.loss), labelled_queries) if incomplete else (plan.loss, None)

    def losses(model: torch.nn.Module, batch: QueryBatch) -> torch.Tensor:
        return loss(model(batch.features), batch.labels, batch.lengths)

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(plan.seed)
        scorer = Scorer(data.features.shape[1], plan.hidden)
        result = fit(
            scorer,
            losses,
            data,
            method=plan.method,
            lr=lr,
            momentum=plan.momentum,
            batch_size=batch,
            period=plan.period,
            steps=plan.epochs * every,
            gradients=plan.max_gradients,
            passes=plan.max_passes,
            weighting=constraint or weighting,
            reweigh=1 if constraint else None,  # kept weights would not see which labels are violated
            anchor_batch=size,
            counts=counts,
            collate_fn=QueryDataset.collate,
            seed=plan.seed,
            callbacks=[] if monitor is None else [monitor],
            progress=plan.progress,
        )
        final, stationarity, best = result.losses, result.stationarity, {}
        if monitor is not None:
            if not monitor.records or monitor.records[-1]["step"] != result.history.last()["step"]:
                monitor.measure(scorer, result.history.last())
            best = monitor.best_record
            scorer.load_state_dict(monitor.best)
            found = measure(scorer, losses, data.batches(size), counts=counts)
            final, stationarity = found.losses, found.stationarity
    return Trained(
        scorer=scorer,
        history=result.history,
        validation=[] if monitor is None else monitor.records,
        best=best,
        samples=result.samples,
        gradients=result.gradients,
        passes=result.passes,
        losses=final,
        stationarity=stationarity,
        lr=max(result.history["lr"]) if isinstance(lr, str) else lr,
        stopped=result.stopped,
    )


def _validation(plan: Plan, held_out: QueryDataset, **options: Any) -> Validation:
    return Validation(held_out, k=plan.k, criterion=plan.criterion, patience=plan.patience, **options)


def single_label_floors(
    plan: Plan, data: QueryDataset, held_out: QueryDataset, bounds: Mapping[int, float]
) -> dict[int, float]:
    """Return the minimum NDCG by label: (1 - bound) times the held-out NDCG of a model trained on this label alone."""
    floors = {}
    for label, bound in bounds.items():
        alone = replace(plan, preference=None, criterion=None)
        trained = train(alone, _one_label(data, label), _one_label(held_out, label), {})
        floors[label] = (1.0 - bound) * trained.best["ndcg"][0]
    return floors


def warn_of_missed_floors(best: Mapping[str, Any], floors: Mapping[int, float]) -> None:
    """Warn if the final model has labels below their floors."""
    missed = [label for label, floor in floors.items() if best["ndcg"][label] < floor]
    if missed:
        told = ", ".join(f"label {s}: {best['ndcg'][s]:.4f} < {floors[s]:.4f}" for s in missed)
        warnings.warn(
            f"no measured model met every bound; the closest one is kept (validation NDCG {told}). Train longer, "
            "allow more loss, or prefer these labels",
            StimulusWarning,
            stacklevel=4,
        )


def default_lr(method: str, data: QueryDataset) -> float | str:
    """Return the method's own rate; else 0.01 for Adam, or 1 / (2 L), L the smoothness of a linear scorer at 0."""
    if (own := METHODS[method].lr if method in METHODS else None) is not None:
        return own
    if method.endswith("adam"):
        return _ADAM_LR
    largest = smoothness(data)
    return 0.5 / largest if largest > 0 else 1.0


def pass_size(data: QueryDataset) -> int:
    """Return the number of queries per batch of a full pass, chosen to bound the memory."""
    entries = data.queries.lengths.mean() * max(1, data.features.shape[1])
    return int(min(1024, max(1, _ENTRIES // entries)))


def _one_label(data: QueryDataset, label: int) -> QueryDataset:
    part = data.subset(range(len(data)))
    part.labels = data.labels[:, [label]]
    return part
