"""A sweep of preferences: one ranker each, which of them are on the front, and the hypervolume."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from stimulus_moo import InvalidOption, MissingDependency
from stimulus_moo.ranking import MultiLabelRanker, ndcg, pareto_front
from tests.ranking.test_ranker import QID, X, Y, problem

SETTINGS = MultiLabelRanker(method="scalarisation", epochs=5, random_state=0)


def test_front_of_three_preferences_on_held_out_queries() -> None:
    test = problem(seed=1)
    preferences = [(20, 1), (1, 1), (1, 20)]
    front = pareto_front(SETTINGS, X, Y, QID, preferences, evaluation=test)
    assert front.ndcg.shape == (3, 2)
    assert front.ndcg[0, 0] > front.ndcg[2, 0]
    assert front.ndcg[2, 1] > front.ndcg[0, 1]
    for ranker, point, preference in zip(front.rankers, front.ndcg, preferences, strict=True):
        assert ranker.preference == list(preference)
        np.testing.assert_array_equal(point, ndcg(test[1], ranker.predict(test[0]), test[2]))
    # two labels: the union of rectangles, by hand
    a, b = front.ndcg[np.argsort(-front.ndcg[:, 0])].T
    heights = np.maximum.accumulate(b)
    area = sum(width * height for width, height in zip(a - np.append(a[1:], 0.0), heights, strict=True))
    assert front.hypervolume == pytest.approx(area, rel=1e-12)
    beaten = [any((q >= p).all() and (q > p).any() for q in front.ndcg) for p in front.ndcg]
    assert front.nondominated.tolist() == [not x for x in beaten]
    assert SETTINGS.preference is None


def test_no_preference_is_refused() -> None:
    with pytest.raises(InvalidOption, match="at least one preference"):
        pareto_front(SETTINGS, X, Y, QID, [])


def test_missing_moocore_says_how_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "moocore", None)
    with pytest.raises(MissingDependency, match=r"pip install 'stimulus-moo\[ranking\]'"):
        pareto_front(SETTINGS, X, Y, QID, [(1, 1)])
