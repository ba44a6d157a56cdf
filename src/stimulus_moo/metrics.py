"""Measures: Pareto stationarity, losses over a data set, the estimator's error, and comparisons of trained models."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
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
from stimulus_moo.errors import InvalidOption, MissingDependency
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


def relative_changes(
    values: Sequence[float],
    baseline: Sequence[float],
    *,
    higher: Sequence[bool],
    scale: Sequence[float | None] | None = None,
) -> list[float]:
    """Return the change of every metric against a baseline, in percent of it; a positive change is worse.

    Args:
        values: one metric per task.
        baseline: the same metrics of the baseline, usually of single-task models.
        higher: for each metric, whether larger is better.
        scale: what a difference is divided by; None for the baseline's absolute value. Give 1.0 for a metric whose best
            value is 0: its changes are then percentage points.

    Raises:
        InvalidOption: the lengths differ, or a baseline to divide by is 0.

    >>> [round(change, 6) for change in relative_changes([0.9, 0.55], [0.8, 0.5], higher=[True, False])]
    [-12.5, 10.0]
    """
    scales = [None] * len(values) if scale is None else list(scale)
    lengths = {"values": len(values), "baseline": len(baseline), "higher": len(higher), "scale": len(scales)}
    if len(set(lengths.values())) != 1 or not values:
        raise InvalidOption(f"values, baseline, higher and scale need one entry per metric, found lengths {lengths}")
    changes = []
    for s, (value, base, up, size) in enumerate(zip(values, baseline, higher, scales, strict=True)):
        divisor = abs(base) if size is None else size
        if divisor == 0:
            raise InvalidOption(f"baseline[{s}] must not be 0, since changes are divided by it; pass scale[{s}]=1.0")
        changes.append(100.0 * (base - value if up else value - base) / divisor)
    return changes


def delta_m(
    values: Sequence[float],
    baseline: Sequence[float],
    *,
    higher: Sequence[bool],
    scale: Sequence[float | None] | None = None,
) -> float:
    """Return Delta m in percent, the mean of ``relative_changes``; below 0 is better than the baseline.

    The measure of Maninis et al. (2019): (1/K) sum_k (-1)^h_k (M_k - B_k) / B_k, where h_k is 1 if larger is better.

    >>> round(delta_m([0.9, 0.55], [0.8, 0.5], higher=[True, False]), 6)
    -1.25
    """
    return float(np.mean(relative_changes(values, baseline, higher=higher, scale=scale)))


def worst_task(
    values: Sequence[float],
    baseline: Sequence[float],
    *,
    higher: Sequence[bool],
    scale: Sequence[float | None] | None = None,
) -> float:
    """Return the largest of ``relative_changes``: how much the task that fares worst has lost, in percent.

    >>> round(worst_task([0.9, 0.55], [0.8, 0.5], higher=[True, False]), 6)
    10.0
    """
    return max(relative_changes(values, baseline, higher=higher, scale=scale))


def mean_rank(table: Sequence[Sequence[float]], *, higher: Sequence[bool]) -> list[float]:
    """Return the mean rank of every row over the columns; 1 is best, equal values share their mean rank.

    Args:
        table: one row per method, one column per metric; NaN ranks last.
        higher: for each column, whether larger is better.

    Raises:
        InvalidOption: a row does not have one number per column.

    >>> mean_rank([[0.9, 3.0], [0.8, 2.0], [0.8, 4.0]], higher=[True, False])
    [1.5, 1.75, 2.75]
    """
    from scipy.stats import rankdata

    if any(len(row) != len(higher) for row in table) or not table:
        raise InvalidOption(f"table needs rows of {len(higher)} numbers, as higher has, found {[*map(len, table)]}")
    costs = np.where(np.asarray(higher), -1.0, 1.0) * np.asarray(table, dtype=np.float64)
    ranks = rankdata(np.where(np.isnan(costs), np.inf, costs), axis=0)
    means: list[float] = ranks.mean(axis=1).tolist()
    return means


def hypervolume(points: ArrayLike, reference: Sequence[float]) -> float:
    """Return the volume between losses and a reference point that at least one of the points dominates.

    Args:
        points: losses of trained models, one row each; smaller is better.
        reference: one number per loss.

    Raises:
        MissingDependency: moocore is not installed.

    >>> hypervolume([[0.5, 1.0], [1.0, 0.5]], [2.0, 2.0])
    2.0
    """
    try:
        import moocore
    except ImportError:
        raise MissingDependency("hypervolume needs moocore: pip install 'stimulus-moo[lab]'") from None
    return float(moocore.hypervolume(np.asarray(points, dtype=np.float64), ref=list(reference)))


def paired_test(first: Sequence[float], second: Sequence[float]) -> float:
    """Return the two-sided p-value that paired numbers differ in their mean: the sign-flip permutation test.

    It is exact up to 13 pairs, and then uses 9,999 random sign flips with a fixed seed. With n pairs the smallest
    p-value is 2^(1-n): 0.0625 for 5 seeds.

    Raises:
        InvalidOption: the lengths differ, or there are fewer than 2 pairs.

    >>> paired_test([1.0, 2.0, 3.0, 4.0, 5.0], [2.0, 4.0, 6.0, 8.0, 10.0])
    0.0625
    """
    from scipy.stats import permutation_test

    if len(first) != len(second) or len(first) < 2:
        raise InvalidOption(
            f"first and second need the same number of values, at least 2, found {len(first)}, {len(second)}"
        )
    differences = np.asarray(first, dtype=np.float64) - np.asarray(second, dtype=np.float64)
    if not differences.any():
        return 1.0
    mean = lambda sample, axis: sample.mean(axis=axis)  # noqa: E731
    test = permutation_test((differences,), mean, permutation_type="samples", rng=np.random.default_rng(0))
    return float(test.pvalue)
