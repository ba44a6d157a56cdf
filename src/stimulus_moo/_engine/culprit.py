"""Finds the objective whose gradient has spoiled that of lambda . F."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING

from stimulus_moo._engine.differentiation import rowwise
from stimulus_moo._engine.nonfinite import non_finite_gradient, too_large
from stimulus_moo._engine.norms import sq_norm_of
from stimulus_moo._engine.observation import Piece
from stimulus_moo.errors import NonFiniteError

if TYPE_CHECKING:
    from stimulus_moo._engine.transaction import Transaction


def find_culprit(transaction: Transaction, pieces: Sequence[Piece]) -> NonFiniteError:
    """Return the error for a non-finite gradient of lambda . F, by evaluating the pieces again with single rows."""
    objective, step = transaction.store.objective, transaction.step
    if transaction.store.swap is not None:
        transaction.store.swap.back()  # it may have been found at x_{t-1}
    lengths: list[float] = []
    for swap in (nullcontext(), transaction.store.swap if transaction.update.look_back else None):
        with swap or nullcontext():
            for piece in pieces:
                evaluated = objective.evaluate(piece.content, step, piece.counts)
                graphs = evaluated.present(piece.counts) if objective.placement.independent else evaluated.graphs
                for s, row in enumerate(rowwise(graphs, objective.model_parameters, objective.placement)):
                    found = [gradient for gradient in row if gradient is not None]
                    if not transaction.rows.finite(found):
                        return non_finite_gradient(s, step)
                    lengths += objective.placement.totals([sq_norm_of(found)])
    return too_large(objective.parameters[0].dtype, step, lengths.index(max(lengths)) % len(graphs))
