"""Generated queries whose labels truly conflict: what lifts one lowers the others."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from stimulus_moo import InvalidOption

if TYPE_CHECKING:
    from stimulus_moo.ranking import RankingData

_SHARES = (0.5, 0.75, 0.9, 0.97)  # the quantiles of the utility at which the grade rises


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
    r"""Return queries with ``documents`` each, features standard normal.

    .. code-block:: text

        utility_s = w_s . x + interaction x_a x_b + noise z,    z standard normal, a and b of label s alone

    The w_s are unit vectors of random directions, any two with the inner product ``correlation``: below 0, what lifts
    one label lowers the others on average. The grades 0 to 4 cut a label's utility at its quantiles. A linear scorer
    cannot see the interaction; trees can.

    Args:
        queries, documents, features: how many; at least twice as many features as labels.
        labels: at least 2.
        correlation: between the labels' linear parts, above -1 / (labels - 1): there they would cancel out.
        interaction: the weight of the product of two features.
        noise: what no ranker can know.
        seed: of the documents. The labels are always the same function of them, so another seed makes test queries.

    Raises:
        InvalidOption: there are too few labels or features, or no labels of this correlation.
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
