"""The metrics against scikit-learn and against brute force, on ragged lists with ties in any order of rows."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from sklearn import config_context
from sklearn.metrics import average_precision_score, ndcg_score

from stimulus_moo import InvalidOption, StimulusError
from stimulus_moo.ranking import counted_queries, mean_average_precision, mrr, ndcg


def draw(seed: int, lists: int, longest: int = 25) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Lists of 1 to ``longest`` documents, many tied scores, three labels, the rows of all lists shuffled."""
    rng = np.random.default_rng(seed)
    qid = np.repeat(rng.permutation(lists), rng.integers(1, longest + 1, lists))
    labels = rng.integers(0, 5, (len(qid), 3)) * (rng.random((len(qid), 3)) < 0.4)
    scores = np.where(rng.random(len(qid)) < 0.5, rng.integers(0, 4, len(qid)), rng.normal(size=len(qid)))
    order = rng.permutation(len(qid))
    return labels[order], scores[order], qid[order]


def lists_of(qid: np.ndarray) -> list[np.ndarray]:
    return [np.flatnonzero(qid == q) for q in dict.fromkeys(qid.tolist())]


@pytest.mark.parametrize("k", [3, 10, None])
def test_linear_ndcg_equals_scikit_learn_on_1000_lists_with_ties(k: int | None) -> None:
    labels, scores, qid = draw(0, 1000)
    found = ndcg(labels, scores, qid, k=k, gain="linear", per_query=True)
    assert found.shape == (1000, 3)
    compared = 0
    for query, rows in enumerate(lists_of(qid)):
        s = query % 3
        truth = labels[rows, s]
        if truth.max() == 0:
            assert math.isnan(found[query, s])
        elif len(rows) > 1:  # scikit-learn refuses a single document
            with config_context(skip_parameter_validation=True, assume_finite=True):  # most of its time
                expected = ndcg_score(truth[None], scores[None, rows], k=k)
            assert abs(found[query, s] - expected) < 1e-9
            compared += 1
        else:
            assert found[query, s] == 1.0
    assert compared > 800


def test_exponential_ndcg_equals_scikit_learn_on_its_gains() -> None:
    labels, scores, qid = draw(1, 100)
    found = ndcg(labels[:, 0], scores, qid, per_query=True)
    for query, rows in enumerate(lists_of(qid)):
        gains = 2.0 ** labels[rows, 0] - 1
        if gains.max() > 0 and len(rows) > 1:
            assert found[query] == pytest.approx(ndcg_score([gains], [scores[rows]], k=10), abs=1e-9)


def test_mean_is_over_the_queries_with_a_relevant_document() -> None:
    labels, scores, qid = draw(2, 200, longest=4)
    for metric in (ndcg, mean_average_precision, mrr):
        each = metric(labels, scores, qid, per_query=True)
        assert np.isnan(each).any()
        np.testing.assert_allclose(metric(labels, scores, qid), np.nanmean(each, axis=0), rtol=1e-13)
        np.testing.assert_array_equal((~np.isnan(each)).sum(0), counted_queries(labels, qid))
        one = metric(labels[:, 1], scores, qid)
        assert isinstance(one, float)
        assert one == pytest.approx(metric(labels, scores, qid)[1], rel=1e-13)


def test_average_precision_equals_scikit_learn() -> None:
    labels, scores, qid = draw(3, 300)
    found = mean_average_precision(labels, scores, qid, per_query=True)
    for query, rows in enumerate(lists_of(qid)):
        for s in range(3):
            if labels[rows, s].max() > 0:
                expected = average_precision_score(labels[rows, s] > 0, scores[rows])
                assert found[query, s] == pytest.approx(expected, abs=1e-12)


def test_reciprocal_rank_is_the_mean_over_all_orders_of_ties() -> None:
    rng = np.random.default_rng(4)
    for _ in range(30):
        scores, relevant = rng.integers(0, 3, 6), rng.integers(0, 2, 6)
        if not relevant.any():
            continue
        values = [
            1 / (1 + next(r for r, i in enumerate(order) if relevant[i]))
            for order in itertools.permutations(range(6))
            if all(scores[a] >= scores[b] for a, b in itertools.pairwise(order))
        ]
        assert mrr(relevant, scores, np.zeros(6)) == pytest.approx(np.mean(values), rel=1e-12)


@pytest.mark.parametrize("metric", [ndcg, mean_average_precision, mrr])
def test_order_of_rows_does_not_matter(metric: object) -> None:
    labels, scores, qid = draw(5, 50)
    order = np.random.default_rng(0).permutation(len(qid))
    np.testing.assert_allclose(
        metric(labels[order], scores[order], qid[order]), metric(labels, scores, qid), rtol=1e-13
    )
    names = np.array([f"q{q}" for q in qid])
    np.testing.assert_array_equal(metric(labels, scores, names), metric(labels, scores, qid))


def test_queries_come_in_the_order_of_their_first_row() -> None:
    found = ndcg([1, 0, 0, 1], [1.0, 2.0, 0.0, 3.0], ["z", "a", "z", "a"], per_query=True)
    assert found.tolist() == [1.0, 1.0]
    found = ndcg([1, 0, 0, 1], [0.0, 2.0, 1.0, 3.0], ["z", "a", "z", "a"], per_query=True)
    assert found.tolist() == [pytest.approx(1 / math.log2(3)), 1.0]


def test_no_relevant_document_anywhere_is_nan() -> None:
    assert math.isnan(ndcg([0, 0], [1.0, 2.0], [1, 1]))
    assert counted_queries([0, 0], [1, 1]) == 0


def test_tiny_grades_keep_their_order() -> None:
    found = ndcg([3e-12, 1e-12], [1.0, 2.0], [0, 0])  # 2^y - 1 is linear there
    assert found == pytest.approx(ndcg([3, 1], [1.0, 2.0], [0, 0], gain="linear"), rel=1e-9)


def test_huge_grades_do_not_overflow() -> None:
    assert ndcg([5000, 4999], [1.0, 2.0], [0, 0]) == pytest.approx(
        (1 + 0.5 / math.log2(3)) ** -1 * (0.5 + 1 / math.log2(3))
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([1, -1], [0.0, 1.0], [0, 0]), "at least 0 .* found -1.0 for label 0 in row 1"),
        (([1, np.inf], [0.0, 1.0], [0, 0]), "found inf"),
        (([1, 0], [0.0, np.nan], [0, 0]), "y_score must hold one finite number per row"),
        (([1, 0], [0.0, 1.0], [0]), r"qid must be one id per row \(2\), found shape \[1\]"),
        (([1, 0], [0.0, 1.0], [0.0, np.nan]), "qid must not be missing"),
        (([], [], []), "at least one row"),
        (([1, 0], [0.0, 1.0], [0, 0], 0), "k must be a positive integer, found 0"),
        (([1, 0], [0.0, 1.0], [0, 0], 10, "square"), "gain must be 'exponential' or 'linear', found 'square'"),
        ((["a", "b"], [0.0, 1.0], [0, 0]), "must be numbers"),
    ],
)
def test_errors_name_what_was_found(arguments: tuple[object, ...], message: str) -> None:
    with pytest.raises(StimulusError, match=message) as caught:
        ndcg(*arguments)
    assert isinstance(caught.value, InvalidOption | ValueError)
