"""LightGBM's ``lambdarank`` as a baseline, trained on one label or on the sum of the labels."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from stimulus_moo.ranking import RankingData

#: Text in tables if LightGBM is not installed.
NOT_INSTALLED = "not installed"

#: Parameters of LightGBM's lambdarank example, the source of the shared data.
PARAMETERS: dict[str, Any] = {
    "objective": "lambdarank",
    "learning_rate": 0.1,
    "num_leaves": 31,
    "min_data_in_leaf": 50,
    "min_sum_hessian_in_leaf": 5.0,
    "bagging_freq": 1,
    "bagging_fraction": 0.9,
}


def installed() -> bool:
    """Return whether LightGBM is installed; it is in the extra ``bench``."""
    return importlib.util.find_spec("lightgbm") is not None


def lambdarank(train: RankingData, label: int | None, *, trees: int, seed: int, **more: Any) -> Any:
    """Train on one label, or on the sum of all labels for None. The rows must be grouped by query.

    Returns:
        A LightGBM booster.
    """
    import lightgbm
    import numpy as np

    target = train.Y.sum(axis=1) if label is None else train.Y[:, label]
    sizes = np.unique(train.qid, return_counts=True)[1]
    parameters: Mapping[str, Any] = {
        **PARAMETERS,
        "seed": seed,
        "num_threads": torch.get_num_threads(),
        "deterministic": True,
        "force_row_wise": True,
        "verbosity": -1,
        **more,
    }
    return lightgbm.train(dict(parameters), lightgbm.Dataset(train.X, target, group=sizes), num_boost_round=trees)


def lambdarank_ndcg(train: RankingData, test: RankingData, label: int | None, *, trees: int, seed: int) -> NDArray[Any]:
    """Return the test NDCG@10 of every label for a booster trained on one of them, or on their sum."""
    from stimulus_moo.ranking import ndcg

    booster = lambdarank(train, label, trees=trees, seed=seed)
    found: NDArray[Any] = ndcg(test.Y, booster.predict(test.X), test.qid, k=10)
    return found
