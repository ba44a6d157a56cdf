"""Features as labels: some features are binned to grades and used as labels instead of inputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from stimulus_moo import InvalidOption
from stimulus_moo.options import positive_integer
from stimulus_moo.ranking.checks import checked_labels, index, is_sparse
from stimulus_moo.ranking.errors import InvalidRankingData


class FeatureLabels:
    """Convert features to labels, with bin edges computed from the training rows.

    The edges of a feature are its quantiles, so that the grades 0 .. grades - 1 have about equally many training rows.
    If at least a fraction 1/``grades`` of the rows has the smallest value (a feature that is mostly 0), these rows have
    grade 0, and the quantiles of the others are the edges of the grades from 1 on. Duplicate edges are removed, so a
    feature with few values has fewer grades. The grade is a nondecreasing function of the feature; values outside the
    training range have the lowest or the highest grade.

    Args:
        columns: columns of X that become labels 1, 2, ...; the given label is label 0.
        grades: maximum number of grades, at least 2.

    >>> import numpy as np
    >>> X = np.array([[0.0, 1.0], [0.0, 2.0], [3.0, 3.0], [4.0, 4.0]])
    >>> rule = FeatureLabels([0], grades=3).fit(X)
    >>> inputs, labels = rule.apply(X, [0, 1, 2, 0])
    >>> inputs.tolist(), labels.tolist()
    ([[1.0], [2.0], [3.0], [4.0]], [[0.0, 0.0], [1.0, 0.0], [2.0, 1.0], [0.0, 2.0]])
    """

    def __init__(self, columns: Sequence[int], grades: int = 5) -> None:
        self.columns = [index(f"columns[{i}]", column) for i, column in enumerate(columns)]
        if not self.columns or len(set(self.columns)) != len(self.columns):
            raise InvalidOption(f"columns must name at least one column, each once, found {list(columns)!r}")
        self.grades = positive_integer("grades", grades)
        if self.grades < 2:
            raise InvalidOption(f"grades must be at least 2, found {grades!r}")
        self.edges: list[NDArray[np.float64]] = []

    def fit(self, X: Any) -> FeatureLabels:
        """Compute the edges from the training rows.

        Raises:
            InvalidRankingData: a column does not exist, has a value that is not finite, or is constant.
        """
        self.edges = [self._edges(column, self._values(X, column)) for column in self.columns]
        return self

    def apply(self, X: Any, y: ArrayLike) -> tuple[Any, NDArray[np.float64]]:
        """Return the inputs without the columns, and the labels: y first, then one per column.

        Raises:
            InvalidRankingData: X or y has the wrong shape or invalid values.
        """
        if not self.edges:
            raise InvalidOption("FeatureLabels is not fitted; call fit with the training rows first")
        labels = checked_labels(y, X.shape[0], name="y")
        graded = [
            np.searchsorted(edges, self._values(X, column), side="right")
            for column, edges in zip(self.columns, self.edges, strict=True)
        ]
        keep = np.setdiff1d(np.arange(X.shape[1]), self.columns)
        return X[:, keep], np.column_stack([labels, *graded]).astype(np.float64)

    def _edges(self, column: int, values: NDArray[np.float64]) -> NDArray[np.float64]:
        least, largest = values.min(), values.max()
        if least == largest:
            raise InvalidRankingData(
                f"column {column} is {least:g} in all {len(values)} rows and cannot be a label; choose another"
            )
        above = values[values > least]
        if (len(values) - len(above)) * self.grades >= len(values):
            inner = np.quantile(above, np.arange(1, self.grades - 1) / (self.grades - 1), method="higher")
            edges = np.append(inner, above.min())
        else:
            edges = np.quantile(values, np.arange(1, self.grades) / self.grades, method="higher")
        distinct: NDArray[np.float64] = np.unique(edges[edges > least])
        return distinct

    def _values(self, X: Any, column: int) -> NDArray[np.float64]:
        if np.ndim(X) != 2 and not is_sparse(X):
            raise InvalidRankingData(f"X must be rows x features, found shape {list(np.shape(X))}")
        if column >= X.shape[1]:
            raise InvalidRankingData(f"column {column} does not exist: X has {X.shape[1]} columns, counted from 0")
        found = X[:, [column]].toarray()[:, 0] if is_sparse(X) else np.asarray(X)[:, column]
        values: NDArray[np.float64] = np.asarray(found, dtype=np.float64)
        if not len(values) or not np.isfinite(values).all():
            raise InvalidRankingData(f"column {column} must be finite in every row, found NaN, infinity or no row")
        return values


def labels_from_features(
    X: Any, y: ArrayLike, columns: Sequence[int], grades: int = 5
) -> tuple[Any, NDArray[np.float64], FeatureLabels]:
    """Convert columns of X to additional labels, with bin edges computed from these rows.

    Args:
        X: rows x features, an array or a CSR matrix: the training rows.
        y: the existing label; it becomes label 0.
        columns: columns of X that become labels 1, 2, ...
        grades: maximum number of grades.

    Returns:
        The inputs without the columns, the labels (rows x (1 + columns)), and the rule: ``rule.apply(X_test, y_test)``
        grades the test rows with the same edges.

    Raises:
        InvalidRankingData: a column does not exist, has a value that is not finite, or is constant.

    >>> import numpy as np
    >>> X = np.arange(12.0).reshape(6, 2)
    >>> inputs, labels, rule = labels_from_features(X, np.zeros(6), columns=[1], grades=3)
    >>> inputs.shape, labels[:, 1].tolist()
    ((6, 1), [0.0, 0.0, 1.0, 1.0, 2.0, 2.0])
    >>> rule.apply(np.array([[0.0, -9.0], [0.0, 99.0]]), [0, 0])[1][:, 1].tolist()
    [0.0, 2.0]
    """
    rule = FeatureLabels(columns, grades).fit(X)
    inputs, labels = rule.apply(X, y)
    return inputs, labels, rule
