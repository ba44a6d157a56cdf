"""Generated ranking data with conflicting labels: improving one label harms the others."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from stimulus_moo import InvalidOption

if TYPE_CHECKING:
    from stimulus_moo.ranking import RankingData

_SHARES = (0.5, 0.75, 0.9, 0.97)  # quantiles of the utility that separate the grades


def conflicting_queries(
    queries: int,
    *,
    documents: int,
    features: int,
    labels: int,
    correlation: float,
    interaction: float,
    noise: float,
    seed: int,
) -> RankingData:
    r"""Return queries with ``documents`` documents each and standard normal features.

    .. code-block:: text

        utility_s = w_s . x + interaction x_a x_b + noise z,    z standard normal, a and b of label s alone

    The w_s are random unit vectors with pairwise inner product ``correlation``. If it is negative, the labels conflict
    on average. Grades 0 to 4 result from quantiles of the utility. A linear scorer cannot represent the interaction;
    trees can.

    Args:
        queries, documents, features: sizes; at least twice as many features as labels.
        labels: number of labels, at least 2.
        correlation: correlation of the linear parts of the labels, above -1 / (labels - 1).
        interaction: weight of the product of two features.
        noise: standard deviation of the noise.
        seed: seed of the documents. The labels are a fixed function of them, so another seed gives test queries.

    Raises:
        InvalidOption: there are too few labels or features, or the correlation is out of range.
    """
    from stimulus_moo.ranking import RankingData

    if labels < 2 or features < 2 * labels:
        raise InvalidOption(f"labels must be at least 2 and features twice as many, found {labels} and {features}")
    if not -1.0 / (labels - 1) < correlation < 1.0:
        raise InvalidOption(f"correlation must lie between -1 / (labels - 1) and 1, found {correlation}")
    generator = np.random.default_rng([seed, 1])
    rows = queries * documents
    X = generator.standard_normal((rows, features), dtype=np.float32)
    Y = np.empty((rows, labels))
    for s, weights in enumerate(_directions(labels, features, correlation)):
        utility = X @ weights + interaction * X[:, 2 * s] * X[:, 2 * s + 1] + noise * generator.standard_normal(rows)
        Y[:, s] = np.digitize(utility, np.quantile(utility, _SHARES))
    return RankingData(X, Y, np.repeat(np.arange(queries), documents))


def _directions(labels: int, features: int, correlation: float) -> NDArray[np.float32]:
    gramian = np.full((labels, labels), correlation) + (1.0 - correlation) * np.eye(labels)
    turn = np.linalg.qr(np.random.default_rng(0).standard_normal((features, labels)))[0]
    found: NDArray[np.float32] = (np.linalg.cholesky(gramian) @ turn.T).astype(np.float32)
    return found
