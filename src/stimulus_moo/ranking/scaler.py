"""Feature scaling, computed in one pass and applied per block, without a copy of the feature matrix."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.preprocessing import StandardScaler

from stimulus_moo.ranking.checks import is_sparse

_ENTRIES = 1 << 23  # entries per block


class Scaler:
    """Standardise the features: dense input is centred and scaled to unit standard deviation, sparse input only scaled.

    Sparse input keeps its zeros, so only blocks of rows become dense. For a linear scorer, centring does not change the
    order within a list. Constant features become 0 for dense input and are unchanged for sparse input.

    >>> import numpy as np
    >>> scaler = Scaler().fit(np.array([[0.0, 5.0], [2.0, 5.0]]))
    >>> scaler(np.array([[2.0, 5.0], [4.0, 6.0]]))
    array([[1., 0.],
           [3., 1.]], dtype=float32)
    """

    mean: NDArray[np.float64] | None
    scale: NDArray[np.float64]

    def fit(self, features: Any, rows: NDArray[np.int64] | None = None) -> Scaler:
        """Compute mean and scale from a matrix, or from some of its rows."""
        sparse = is_sparse(features)
        learner = StandardScaler(with_mean=not sparse)
        count, width = features.shape[0] if rows is None else len(rows), max(1, features.shape[1])
        step = max(1, _ENTRIES // width)
        for start in range(0, count, step):
            part = slice(start, start + step)
            learner.partial_fit(features[part] if rows is None else features[rows[part]])
        self.mean = None if sparse else learner.mean_
        self.scale = learner.scale_
        return self

    def __call__(self, block: Any) -> NDArray[np.float32]:
        """Return a block of rows, scaled and dense."""
        dense = block.toarray() if is_sparse(block) else np.asarray(block)
        centred = dense if self.mean is None else dense - self.mean  # in float64, before float32 rounds
        scaled: NDArray[np.float32] = np.divide(centred, self.scale).astype(np.float32)
        return scaled
