"""Whether a step solves for the weights or keeps them, the solve itself, and the direction."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from stimulus_moo._engine.culprit import find_culprit
from stimulus_moo._engine.differentiation import full_precision
from stimulus_moo._engine.loss_forms import ALL_LOSSES, AnyRows, LossForm, WeightedLoss
from stimulus_moo._engine.nonfinite import check_direction
from stimulus_moo._engine.rows import Rows
from stimulus_moo._engine.transaction import Transaction
from stimulus_moo.estimators import Update
from stimulus_moo.weightings.base import Weighting, checked

if TYPE_CHECKING:
    from stimulus_moo.multigradient import MultiGradient

ONE = torch.ones(1, dtype=torch.float64)  # the weight of the one row of kept weights


def form_of(mg: MultiGradient, t: int, update: Update, *, stepping: bool) -> LossForm:
    """Return what a step differentiates: all losses where the weights are due, else one under kept or fixed weights.

    An evaluation that is not a step, and so only looks, solves for nothing if there are weights to keep.
    """
    kept = mg.weights
    if mg.objective.counts is not None and update.anchor is not None and not update.anchor.repeats:
        return ALL_LOSSES  # the one loss lambda . F needs the counts of the whole anchor beforehand
    if not mg.weighting.needs_rows:
        return WeightedLoss(find=mg.weighting.constant)
    if mg.reweigh is None or kept is None:
        return mg.solving_form
    complete = not update.recursive  # are the rows of this step those of the estimate?
    due = stepping and complete and mg.reweigh.due(t, anchored=update.anchor is not None)
    return mg.solving_form if due else WeightedLoss(kept)


def needs_memory(mg: MultiGradient, update: Update) -> bool:
    """Return whether d_t depends on more than the rows of this step, where only one row is remembered."""
    return mg.store.one_row and bool(update.keep or update.look_back)


def solve(mg: MultiGradient, transaction: Transaction, t: int) -> Tensor:
    """Return the weights for the rows of a transaction."""
    rows, products = transaction.rows, transaction.products
    assert isinstance(rows, Rows)
    with full_precision(mg.objective.devices):
        if products is None or mg.store.metric is not None:
            gramian = rows.gramian(t, mg.store.roots())
        else:
            gramian = products.cpu()
        values = loss_values(mg, transaction)
        weights = checked(weigh(mg.weighting, gramian, transaction.account.counts, values), rows.objectives)
    if mg.store.reducer is not None and not mg.weighting.deterministic:
        weights = mg.store.reducer.broadcast(weights)
    return weights


def weigh(
    weighting: Weighting, gramian: Tensor, counts: Sequence[float] | None, values: Tensor | None = None
) -> Tensor:
    """Return the weights; an objective without a count whose row is zero gets 0, since a zero row would get all."""
    rule: Any = weighting
    losses = () if values is None else (values,)  # only for weightings that use them
    if counts is None or all(counts):
        return rule(gramian, *losses)  # type: ignore[no-any-return]  # ``checked`` looks at it
    present = [s for s, (count, square) in enumerate(zip(counts, gramian.diagonal(), strict=True)) if count or square]
    if len(present) == len(counts):
        return rule(gramian, *losses)  # type: ignore[no-any-return]
    return rule.among(gramian, present, *losses)  # type: ignore[no-any-return]


def loss_values(mg: MultiGradient, transaction: Transaction) -> Tensor | None:
    """Return the running values of the losses after a transaction; None if the weighting does not use them.

    Where the rows add a difference of two points, so do the values: keep L + now F_B(x_t) + before F_B(x_{t-1}).
    Elsewhere they are the losses of the batch or the anchor. A loss without a count keeps its value.
    """
    if not mg.weighting.uses_losses:
        return None
    update, account, old = transaction.update, transaction.account, mg.store.loss_values
    assert account.losses is not None
    now = account.losses.detach().double().cpu()
    if old is None:
        return now
    new = now
    if update.before and account.before is not None:
        difference = update.now * now + update.before * account.before.detach().double().cpu()
        new = torch.where(old.isnan(), now, update.keep * old + difference)
    return torch.where(new.isnan(), old, new)


def combine(mg: MultiGradient, transaction: Transaction, t: int) -> tuple[Tensor, list[Tensor | None], float]:
    """Return lambda_t, d_t and ||d_t||^2."""
    rows, weights = transaction.rows, transaction.form.weights_for(transaction.objectives)
    if weights is None:
        weights = factors = solve(mg, transaction, t)
    else:
        factors = ONE
    direction, sq_norm = rows.combine(factors)
    if transaction.form.weighted and not math.isfinite(sq_norm):
        raise find_culprit(transaction, transaction.evaluated)
    if isinstance(rows, Rows) and (mg.objective.narrow or not math.isfinite(sq_norm)):
        check_direction(direction, sq_norm, rows, factors, t)
    return weights, direction, sq_norm


def remember(
    mg: MultiGradient, transaction: Transaction, direction: Sequence[Tensor | None] | None, weights: Tensor
) -> AnyRows | None:
    """Return the rows that the estimator needs again: under kept weights one, whose value is d_t."""
    store, rows = mg.store, transaction.rows
    if not mg.estimator.remembers:
        return None
    if transaction.form.weighted or not store.one_row:
        return rows
    return store.row_of(rows.mix(weights)[0] if direction is None or mg.objective.narrow else direction)
