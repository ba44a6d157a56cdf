"""Scikit-learn's own estimator checks: all of them apply, since rows without query ids are one list."""

from __future__ import annotations

from typing import Any

from sklearn.utils.estimator_checks import parametrize_with_checks

from stimulus_moo.ranking import MultiLabelRanker


@parametrize_with_checks([MultiLabelRanker(epochs=5), MultiLabelRanker(hidden=(4,), method="smgd", epochs=3)])
def test_scikit_learn_check(estimator: Any, check: Any) -> None:
    check(estimator)
