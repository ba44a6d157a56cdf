"""Measures of progress: Pareto stationarity, losses over a data set, the error of the estimator."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from stimulus_moo._engine.account import Account
from stimulus_moo._engine.counts import Counts
from stimulus_moo._engine.differentiation import Engine, full_precision
from stimulus_moo._engine.loss_names import name_losses
from stimulus_moo._engine.objective import Losses, Objective
from stimulus_moo._engine.rows import Rows
from stimulus_moo._engine.solving import weigh
from stimulus_moo._engine.storage import Storage
from stimulus_moo._engine.store import Store
from stimulus_moo._engine.transaction import Transaction
from stimulus_moo.anchors import FullAnchor
from stimulus_moo.data.batches import require_batches
from stimulus_moo.errors import InvalidOption
from stimulus_moo.estimators import Update
from stimulus_moo.multigradient import MultiGradient
from stimulus_moo.weightings import MinNorm


@dataclass(frozen=True)
class Measurement:
    """Mean losses, min-norm weights of the mean gradients, and ||weights^T grad F(x)||^2, over ``samples`` samples."""

    losses: list[float]
    weights: list[float]
    stationarity: float
    samples: int


def measure(
    model: torch.nn.Module,
    losses: Losses,
    batches: Iterable[Any],
    *,
    micro_batch: int | None = None,
    batch_size: Callable[[Any], int] | None = None,
    counts: Counts | None = None,
) -> Measurement:
    """Evaluate the losses and the Pareto stationarity over batches, weighted by their size or by ``counts``.

    With ``counts``, an objective without any sample has the loss NaN and the weight 0.

    Parameters, gradients, buffers and the random state are left unchanged.

    Args:
        model, losses, micro_batch, batch_size, counts: as for ``MultiGradient``; the mode (train or eval) is not
            changed.
        batches: an iterable of batches; for a single batch pass ``[batch]``.

    >>> import torch
    >>> model = torch.nn.Linear(1, 1, bias=False)
    >>> _ = torch.nn.init.constant_(model.weight, 2.0)
    >>> losses = lambda m, x: ((m(x).mean() - 1) ** 2, (m(x).mean() + 1) ** 2)
    >>> found = measure(model, losses, [torch.ones(4, 1)])
    >>> found.losses, found.weights, found.stationarity
    ([1.0, 9.0], [1.0, 0.0], 4.0)
    """
    objective = Objective(model, losses, micro_batch=micro_batch, batch_size=batch_size, counts=counts)
    return measure_with(_new_store(objective), batches)


def measure_with(store: Store, batches: Iterable[Any], step: int = 0) -> Measurement:
    """Measure with a new store; each of several processes passes its part of the batches."""
    rows, gramian, account = _mean_rows(store, batches, step)
    assert account.losses is not None
    with torch.no_grad(), full_precision(store.objective.devices):
        weights = weigh(MinNorm(), gramian, account.counts)
        _, sq_norm = rows.combine(weights)
    return Measurement(account.losses.tolist(), weights.tolist(), float(sq_norm), account.samples)


def pareto_stationarity(
    model: torch.nn.Module,
    losses: Losses,
    batches: Iterable[Any],
    *,
    micro_batch: int | None = None,
    batch_size: Callable[[Any], int] | None = None,
    counts: Counts | None = None,
) -> float:
    """Return the minimum over the simplex of ||lambda^T grad F(x)||^2, with arguments as for ``measure``.

    >>> import torch
    >>> model = torch.nn.Linear(1, 1, bias=False)
    >>> _ = torch.nn.init.constant_(model.weight, 0.5)
    >>> losses = lambda m, x: ((m(x).mean() - 1) ** 2, (m(x).mean() + 1) ** 2)
    >>> round(pareto_stationarity(model, losses, [torch.ones(4, 1)]), 12)  # between the minima: Pareto-optimal
    0.0
    """
    found = measure(model, losses, batches, micro_batch=micro_batch, batch_size=batch_size, counts=counts)
    return found.stationarity


def estimator_error(multigradient: MultiGradient, batches: Iterable[Any]) -> Tensor:
    """Return ||u_t^s - grad f_s(x_t)||^2 for every objective s, which Lemma 1 of the paper bounds.

    Call it between ``backward`` and ``optimizer.step()``, while the parameters are still x_t.

    Args:
        multigradient: one whose estimator keeps its rows (``Recursive``, ``Page``, ``Tracking``, ``Storm``); others
            raise InvalidOption.
        batches: the data for grad f_s.

    >>> import torch
    >>> from stimulus_moo import MultiGradient, Recursive
    >>> model, data = torch.nn.Linear(2, 2), torch.randn(6, 2)
    >>> mg = MultiGradient(model, lambda m, x: m(x).square().mean(0), Recursive([data], period=10))
    >>> _ = mg.backward(data[:2])
    >>> bool((estimator_error(mg, [data]) < 1e-12).all())  # an anchor over all data is exact
    True
    """
    kept = multigradient.store.rows
    if not isinstance(kept, Rows) or multigradient.store.one_row:
        found = f"found {type(multigradient.estimator).__name__} at step {multigradient.t}"
        found += " with kept weights" if multigradient.store.one_row else ""
        raise InvalidOption(f"multigradient must have an estimator that keeps all rows, after a first step, {found}")
    objective = multigradient.objective
    rows, *_ = _mean_rows(_new_store(objective), batches)
    with torch.no_grad():
        rows.merge(kept, -1.0)
        return rows.sq_norms()


def _new_store(objective: Objective) -> Store:
    """Return a store for this process on its own, or for all over which the model is split."""
    placement = objective.placement
    reducer = placement.new_reducer(Storage())
    return Store(objective, Engine("auto", objective.model, placement), reducer=reducer)


def _mean_rows(store: Store, batches: Iterable[Any], step: int = 0) -> tuple[Rows, Tensor, Account]:
    """Return the mean gradients over the batches, their Gramian, and the account with the mean losses."""
    require_batches("batches", batches)
    objective = store.objective
    snapshot = objective.snapshot()
    transaction = Transaction(store, Update(keep=0.0, now=1.0, anchor=FullAnchor(batches)), step, snapshot)
    try:
        with torch.no_grad():
            transaction.evaluate(None)
            with full_precision(objective.devices):
                rows = transaction.rows
                assert isinstance(rows, Rows)
                gramian = rows.gramian(step)
    except BaseException as error:
        name_losses(error, objective.loss_names or ())
        if store.reducer is not None:
            store.reducer.abandon(store, error)
        raise
    finally:
        snapshot.restore()
    return rows, gramian, transaction.account
