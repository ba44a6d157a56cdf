"""Reading of ranking files for the commands: several files as one data set, features as labels."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse
from numpy.typing import NDArray

from stimulus_moo.ranking.binning import FeatureLabels
from stimulus_moo.ranking.data import RankingData, has_qid, load_letor, load_lightgbm
from stimulus_moo.ranking.lists import Queries


class Layout(StrEnum):
    """Format of a file: how it assigns documents to queries."""

    AUTO = "auto"
    LETOR = "letor"
    LIGHTGBM = "lightgbm"


def read_files(
    files: Sequence[Path], layout: Layout, *, n_features: int | None = None, zero_based: bool = False
) -> RankingData:
    """Read files as one data set. Queries of different files are different, even if their ids are equal.

    Args:
        files: LETOR files, or LightGBM files with their list lengths in ``FILE.query``.
        layout: format of all files; ``auto`` looks for a qid in the first line of each.
        n_features: number of features; None takes it from the largest index.
        zero_based: whether feature indices start at 0.

    Raises:
        InvalidRankingData: a file is missing, damaged, in another format, or has more features.
    """
    parts: list[RankingData] = []
    ids: list[NDArray[Any]] = []
    for path in files:
        letor = has_qid(path) if layout is Layout.AUTO else layout is Layout.LETOR
        part = (load_letor if letor else load_lightgbm)(path, n_features=n_features, zero_based=zero_based)
        queries = Queries(part.qid)
        ids.append(queries.query + (ids[-1].max() + 1 if ids else 0))
        parts.append(part)
    width = max(part.X.shape[1] for part in parts)
    for part in parts:
        part.X.resize((part.X.shape[0], width))
    X = scipy.sparse.vstack([part.X for part in parts], format="csr")
    return RankingData(X, np.concatenate([part.Y for part in parts]), np.concatenate(ids))


def with_labels(data: RankingData, rule: FeatureLabels | None) -> RankingData:
    """Return the data with some features converted to labels by a fitted rule."""
    return data if rule is None else RankingData(*rule.apply(data.X, data.Y[:, 0]), data.qid)
