"""Whether a step solves for the weights or keeps them, and the solve itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from stimulus_moo._engine.differentiation import full_precision
from stimulus_moo._engine.loss_forms import LossForm, WeightedLoss
from stimulus_moo._engine.rows import Rows
from stimulus_moo._engine.transaction import Transaction
from stimulus_moo.estimators import Update
from stimulus_moo.weightings.base import checked

if TYPE_CHECKING:
    from stimulus_moo.multigradient import MultiGradient


def form_of(mg: MultiGradient, t: int, update: Update, *, stepping: bool) -> LossForm:
    """Return what a step differentiates: all losses where the weights are due, else one under kept or fixed weights.

    An evaluation that is not a step, and so only looks, solves for nothing if there are weights to keep.
    """
    kept = mg.weights
    if not mg.weighting.needs_rows:
        return WeightedLoss(find=mg.weighting.constant)
    if mg.reweigh is None or kept is None:
        return mg.solving_form
    due = stepping and mg.reweigh.due(t, anchored=update.anchor is not None)
    return mg.solving_form if due else WeightedLoss(kept)


def needs_memory(mg: MultiGradient, update: Update) -> bool:
    """Return whether d_t depends on more than the rows of this step, where only one row is remembered."""
    return mg.store.one_row and bool(update.keep or update.look_back)


def solve(mg: MultiGradient, transaction: Transaction, t: int) -> Tensor:
    """Return the weights for the rows of a transaction."""
    rows, products = transaction.rows, transaction.products
    assert isinstance(rows, Rows)
    with full_precision(mg.objective.devices):
        gramian = rows.gramian(t) if products is None else products.cpu()
        weights = checked(mg.weighting(gramian), rows.objectives)
    if mg.store.reducer is not None and not mg.weighting.deterministic:
        weights = mg.store.reducer.broadcast(weights)
    return weights
