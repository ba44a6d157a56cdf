"""Features that become labels: quantiles, zero-inflated and coarse columns, the same edges on the test rows."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse

from stimulus_moo import InvalidOption
from stimulus_moo.ranking import FeatureLabels, InvalidRankingData, labels_from_features


def grades_of(values: np.ndarray, grades: int = 5) -> np.ndarray:
    X = np.column_stack([values, np.zeros(len(values))])
    return labels_from_features(X, np.zeros(len(values)), [0], grades)[1][:, 1]


def test_a_continuous_column_has_equally_many_rows_in_every_grade() -> None:
    found = grades_of(np.random.default_rng(0).normal(size=1000))
    assert np.bincount(found.astype(int)).tolist() == [200] * 5


def test_a_column_that_is_mostly_0_has_0_as_grade_0() -> None:
    rng = np.random.default_rng(1)
    values = np.where(rng.random(1000) < 0.8, 0.0, rng.random(1000) + 0.1)
    found = grades_of(values)
    assert ((found == 0) == (values == 0)).all()
    counts = np.bincount(found.astype(int))[1:]
    assert len(counts) == 4
    assert counts.max() - counts.min() <= 1


@pytest.mark.parametrize("seed", range(20))
def test_grades_never_fall_when_the_value_rises(seed: int) -> None:
    rng = np.random.default_rng(seed)
    values = rng.choice(rng.normal(size=rng.integers(2, 9)), 200)
    found = grades_of(values, grades=int(rng.integers(2, 7)))
    assert (np.diff(found[np.argsort(values)]) >= 0).all()
    assert found.min() == 0
    assert found.max() >= 1
    assert len(np.unique(found)) == found.max() + 1  # no grade is empty


def test_two_values_make_two_grades() -> None:
    assert grades_of(np.array([3.0, 3.0, 3.0, 8.0])).tolist() == [0, 0, 0, 1]
    assert grades_of(np.array([3.0, 8.0, 8.0, 8.0, 8.0, 8.0, 8.0])).tolist() == [0, 1, 1, 1, 1, 1, 1]


def test_test_rows_are_graded_by_the_training_edges() -> None:
    train = np.arange(100.0)[:, None] * [1.0, 1.0]
    _, _, rule = labels_from_features(train, np.zeros(100), [1])
    inputs, labels = rule.apply(np.array([[0.5, 19.9], [0.5, 20.0], [0.5, -1e9], [0.5, 1e9]]), [1, 2, 3, 4])
    assert inputs.tolist() == [[0.5]] * 4
    assert labels.tolist() == [[1, 0], [2, 1], [3, 0], [4, 4]]


def test_sparse_and_dense_agree_and_sparse_stays_sparse() -> None:
    rng = np.random.default_rng(2)
    X = rng.random((60, 5)) * (rng.random((60, 5)) < 0.5)
    dense, labels, _ = labels_from_features(X, np.ones(60), [3, 0])
    sparse, same, _ = labels_from_features(scipy.sparse.csr_array(X), np.ones(60), [3, 0])
    assert scipy.sparse.issparse(sparse)
    np.testing.assert_array_equal(sparse.toarray(), dense)
    np.testing.assert_array_equal(dense, X[:, [1, 2, 4]])
    np.testing.assert_array_equal(same, labels)


def test_columns_that_cannot_be_labels_are_refused() -> None:
    X = np.ones((4, 2))
    with pytest.raises(InvalidRankingData, match="column 1 is 1 in all 4 rows and cannot be a label"):
        labels_from_features(X, np.zeros(4), [1])
    with pytest.raises(InvalidRankingData, match="column 2 does not exist: X has 2 columns"):
        labels_from_features(X, np.zeros(4), [2])
    X[1, 0] = np.nan
    with pytest.raises(InvalidRankingData, match="column 0 must be finite"):
        labels_from_features(X, np.zeros(4), [0])
    with pytest.raises(InvalidOption, match=r"each once, found \[0, 0\]"):
        FeatureLabels([0, 0])
    with pytest.raises(InvalidOption, match="grades must be at least 2, found 1"):
        FeatureLabels([0], grades=1)
    with pytest.raises(InvalidOption, match="call fit"):
        FeatureLabels([0]).apply(X, np.zeros(4))
