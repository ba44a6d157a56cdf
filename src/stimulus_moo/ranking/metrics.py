"""Ranking metrics over ragged lists, one number per label: NDCG, mean average precision, mean reciprocal rank.

All metrics take one score per row, with the rows in any order. A query without a relevant document (label > 0) is
excluded from the mean of that label: ``counted_queries`` returns the number of included queries, and
``per_query=True`` returns NaN for the others. A document whose label is missing (NaN) is not in the list of that label.
Queries are in the order of their first row. No metric depends on the order of rows with equal scores.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import gammaln

from stimulus_moo import InvalidOption
from stimulus_moo.options import positive_integer
from stimulus_moo.ranking.checks import checked_labels, checked_qid, checked_scores
from stimulus_moo.ranking.lists import Queries

FloatArray = NDArray[np.float64]


def ndcg(
    y_true: ArrayLike,
    y_score: ArrayLike,
    qid: ArrayLike,
    k: int | None = 10,
    gain: str = "exponential",
    per_query: bool = False,
) -> Any:
    r"""Return the normalised discounted cumulative gain at k.

    .. code-block:: text

        DCG@k = sum over ranks r <= k of  gain(y_r) / log2(1 + r),    NDCG@k = DCG@k / (DCG@k of the best order)

    Documents of equal score share the mean of their discounts, as in scikit-learn, so ``gain="linear"`` equals
    ``sklearn.metrics.ndcg_score``.

    Args:
        y_true: rows, or rows x K labels, at least 0; NaN where missing.
        y_score: one score per row.
        qid: one query id per row, in any order.
        k: cutoff; None for whole lists.
        gain: ``"exponential"``, 2^y - 1, or ``"linear"``, y.
        per_query: return the value of every query, NaN for one without a relevant document.

    Returns:
        The mean as a float, or K means for rows x K labels; NaN if no query has a relevant document.

    >>> ndcg([1, 0, 2, 0], [0.1, 0.9, 0.8, 0.3], ["a", "a", "b", "b"])
    0.8154648767857288
    >>> ndcg([[1, 0], [0, 0], [0, 3]], [0.1, 0.9, 0.8], [1, 1, 2], per_query=True)
    array([[0.63092975,        nan],
           [       nan, 1.        ]])
    """
    if gain not in ("exponential", "linear"):
        raise InvalidOption(f"gain must be 'exponential' or 'linear', found {gain!r}")
    k = None if k is None else positive_integer("k", k)
    return _evaluate(lambda ranking: _ndcg(ranking, k, gain), y_true, y_score, qid, per_query)


def _ndcg(ranking: _Ranking, k: int | None, gain: str) -> FloatArray:
    labels, starts = ranking.labels, ranking.starts
    best = np.maximum.reduceat(labels, starts)  # per query; gains are divided by the largest one to avoid overflow
    top = best[ranking.query]
    if gain == "exponential":
        gains = -np.exp2(labels - top) * np.expm1(-labels * np.log(2.0))
    else:
        gains = labels / np.where(top > 0, top, 1.0)
    discounts = _discounts(ranking.rank, k)
    actual = np.add.reduceat(gains * ranking.averaged(discounts)[:, None], starts)
    ideal = np.empty_like(actual)
    for s in range(labels.shape[1]):
        falling = gains[np.lexsort((-gains[:, s], ranking.query)), s]
        ideal[:, s] = np.add.reduceat(falling * discounts, starts)
    found: FloatArray = actual / np.where(best > 0, ideal, 1.0)
    return found


def mean_average_precision(y_true: ArrayLike, y_score: ArrayLike, qid: ArrayLike, per_query: bool = False) -> Any:
    """Return the mean over queries of the average precision; a label > 0 is relevant.

    The value of a query equals ``sklearn.metrics.average_precision_score``: documents with equal scores are added
    together before the precision is computed.

    Args:
        y_true, y_score, qid, per_query: as for ``ndcg``.

    >>> mean_average_precision([1, 0, 1], [0.9, 0.5, 0.1], [1, 1, 1])
    0.8333333333333333
    """
    return _evaluate(_average_precision, y_true, y_score, qid, per_query)


def _average_precision(ranking: _Ranking) -> FloatArray:
    hits = (ranking.labels > 0).astype(np.float64)
    so_far = ranking.running(hits)
    precision = so_far[ranking.tie_last] / (ranking.rank[ranking.tie_last] + 1)[:, None]
    shares = np.add.reduceat(hits * precision[ranking.tie], ranking.starts)
    found: FloatArray = shares / np.maximum(np.add.reduceat(hits, ranking.starts), 1.0)
    return found


def mrr(y_true: ArrayLike, y_score: ArrayLike, qid: ArrayLike, per_query: bool = False) -> Any:
    """Return the mean reciprocal rank of the first relevant document, a label > 0.

    For tied scores, it is the expectation over all orders of the tied documents.

    Args:
        y_true, y_score, qid, per_query: as for ``ndcg``.

    >>> mrr([0, 1, 0, 1], [0.9, 0.5, 0.5, 0.1], [1, 1, 1, 1])
    0.41666666666666663
    """
    return _evaluate(_reciprocal_rank, y_true, y_score, qid, per_query)


def _reciprocal_rank(ranking: _Ranking) -> FloatArray:
    hits = (ranking.labels > 0).astype(np.float64)
    in_tie = np.add.reduceat(hits, ranking.tie_first)[ranking.tie]  # r relevant among the n documents of the tie
    before = ranking.running(hits)[ranking.tie_last][ranking.tie] - in_tie
    first = (in_tie > 0) & (before == 0)  # rows of the tie that holds the first relevant document
    size = (ranking.tie_last - ranking.tie_first + 1.0)[ranking.tie][:, None]
    place = (np.arange(len(ranking.tie)) - ranking.tie_first[ranking.tie] + 1.0)[:, None]
    possible = first & (place <= size - in_tie + 1)
    # the first of r relevant among n in random order has position t with probability C(n - t, r - 1) / C(n, r)
    safe = [np.where(possible, value, 1.0) for value in (size - place, in_tie - 1, size, in_tie)]
    log_odds = _log_choose(*np.where(possible, safe[:2], 0.0)) - _log_choose(*safe[2:])
    odds = np.where(possible, np.exp(log_odds), 0.0)
    found: FloatArray = np.add.reduceat(odds / (ranking.rank + 1)[:, None], ranking.starts)
    return found


def counted_queries(y_true: ArrayLike, qid: ArrayLike) -> Any:
    """Return the number of queries with a relevant document, as an int, or K numbers for K labels.

    >>> counted_queries([[1, 0], [0, 0], [2, 3]], [1, 1, 2])
    array([2, 1])
    """
    labels = checked_labels(y_true, name="y_true")
    queries = Queries(checked_qid(qid, len(labels)))
    counts = np.array([len(np.unique(queries.query[column > 0])) for column in labels.T])
    return int(counts[0]) if np.ndim(y_true) == 1 else counts


def _evaluate(
    metric: Callable[[_Ranking], FloatArray], y_true: ArrayLike, y_score: ArrayLike, qid: ArrayLike, per_query: bool
) -> Any:
    """Return the metric of every query, or its mean over the queries with a relevant document."""
    labels = checked_labels(y_true, name="y_true")
    scores = checked_scores(y_score, len(labels))
    queries = Queries(checked_qid(qid, len(labels)))
    if np.isnan(labels).any():
        values = np.full((len(queries), labels.shape[1]), np.nan)
        for s, known in enumerate(~np.isnan(labels.T)):
            if known.any():
                lists = Queries(queries.query[known])  # queries without a labelled document are left out
                values[lists.ids, s] = _Ranking(labels[known, s, None], scores[known], lists).values(metric)[:, 0]
    else:
        values = _Ranking(labels, scores, queries).values(metric)
    if not per_query:
        counts = (~np.isnan(values)).sum(axis=0)
        values = np.where(counts > 0, np.nansum(values, axis=0) / np.maximum(counts, 1), np.nan)
    if np.ndim(y_true) != 1:
        return values
    return values[:, 0] if per_query else float(values[0])


class _Ranking:
    """Rows sorted by query and descending score, with ranks and ties."""

    def __init__(self, labels: FloatArray, scores: FloatArray, queries: Queries) -> None:
        order = np.lexsort((-scores, queries.query))
        self.starts = queries.starts  # the lists start at the same rows as when grouped by query
        self.labels, scores, self.query = labels[order], scores[order], queries.query[order]
        self.rank = np.arange(len(order)) - self.starts[self.query]  # from 0
        new = np.ones(len(order), dtype=bool)
        new[1:] = (scores[1:] != scores[:-1]) | (self.query[1:] != self.query[:-1])
        self.tie = np.cumsum(new) - 1  # tie of each row
        self.tie_first = np.flatnonzero(new)
        self.tie_last = np.append(self.tie_first[1:], len(order)) - 1

    def values(self, metric: Callable[[_Ranking], FloatArray]) -> FloatArray:
        """Return the metric of each query and label, NaN without a relevant document."""
        counted = np.maximum.reduceat(self.labels, self.starts) > 0
        found: FloatArray = np.where(counted, metric(self), np.nan)
        return found

    def averaged(self, values: FloatArray) -> FloatArray:
        """Return the mean over each tie, at every row."""
        means = np.add.reduceat(values, self.tie_first) / (self.tie_last - self.tie_first + 1)
        averaged: FloatArray = means[self.tie]
        return averaged

    def running(self, values: FloatArray) -> FloatArray:
        """Return cumulative sums over the ranks of each list."""
        sums = np.cumsum(values, axis=0)
        before = sums[self.starts] - values[self.starts]
        running: FloatArray = sums - before[self.query]
        return running


def _discounts(rank: NDArray[np.int64], k: int | None) -> FloatArray:
    found: FloatArray = 1.0 / np.log2(rank + 2.0)
    return found if k is None else np.where(rank < k, found, 0.0)


def _log_choose(n: FloatArray, r: FloatArray) -> FloatArray:
    found: FloatArray = gammaln(n + 1) - gammaln(r + 1) - gammaln(n - r + 1)
    return found
