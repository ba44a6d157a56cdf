"""Pareto front of rankers: one per preference, compared by the NDCG of every label, with the hypervolume."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import clone

from stimulus_moo import InvalidOption, MissingDependency, hypervolume
from stimulus_moo.ranking.metrics import ndcg
from stimulus_moo.ranking.ranker import MultiLabelRanker


@dataclass(frozen=True)
class ParetoFront:
    """Rankers for several preferences, and their NDCG.

    Attributes:
        preferences: one row per ranker.
        rankers: the fitted rankers.
        ndcg: rankers x labels, on the evaluation data.
        nondominated: whether each ranker is nondominated.
        hypervolume: hypervolume of these points with reference point 0; at most 1.

    >>> import numpy as np
    >>> point = np.array([[0.5, 0.8]])
    >>> ParetoFront(np.ones((1, 2)), [], point, np.array([True]), 0.4).hypervolume
    0.4
    """

    preferences: NDArray[np.float64]
    rankers: list[MultiLabelRanker]
    ndcg: NDArray[np.float64]
    nondominated: NDArray[np.bool_]
    hypervolume: float


def pareto_front(
    ranker: MultiLabelRanker,
    X: Any,
    Y: ArrayLike,
    qid: ArrayLike,
    preferences: Iterable[Sequence[float]],
    *,
    evaluation: tuple[Any, ArrayLike, ArrayLike] | None = None,
) -> ParetoFront:
    """Fit one ranker per preference and compare them.

    Args:
        ranker: ranker with the settings; it is not changed.
        X, Y, qid: training data, as for ``fit``.
        preferences: sequences of one positive number per label.
        evaluation: held-out ``(X, Y, qid)`` for the comparison; None for the training data.

    Raises:
        MissingDependency: moocore is not installed.
        InvalidOption: there is no preference, or one is invalid.

    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> X, qid = rng.normal(size=(300, 3)), np.repeat(np.arange(30), 10)
    >>> Y = np.column_stack([X[:, 0] > 0.5, X[:, 1] > 0.5])
    >>> settings = MultiLabelRanker(method="scalarisation", epochs=5, random_state=0)
    >>> front = pareto_front(settings, X, Y, qid, [(9, 1), (1, 1), (1, 9)])
    >>> front.nondominated.tolist(), bool(front.hypervolume > front.ndcg.prod(axis=1).max())
    ([True, True, True], True)
    """
    try:
        import moocore
    except ImportError:
        raise MissingDependency("pareto_front needs moocore: pip install 'stimulus-moo[ranking]'") from None
    wanted = [list(preference) for preference in preferences]
    if not wanted:
        raise InvalidOption("preferences must hold at least one preference, found none")
    rankers = [clone(ranker).set_params(preference=preference).fit(X, Y, qid) for preference in wanted]
    X_, Y_, qid_ = (X, Y, qid) if evaluation is None else evaluation
    points = np.array([np.atleast_1d(ndcg(Y_, each.predict(X_), qid_, k=each.k)) for each in rankers])
    best = moocore.is_nondominated(points, maximise=True, keep_weakly=True)
    volume = hypervolume(-points, [0.0] * points.shape[1])
    return ParetoFront(np.array(wanted, dtype=np.float64), rankers, points, best, volume)
