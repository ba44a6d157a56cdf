"""Ranking files named on the command line: their layout found out, several read as one, features turned into labels."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from stimulus_moo.ranking import FeatureLabels, RankingData


class Layout(StrEnum):
    """How a file says which documents belong together."""

    AUTO = "auto"
    LETOR = "letor"
    LIGHTGBM = "lightgbm"


def read_files(
    files: Sequence[Path], layout: Layout, *, n_features: int | None = None, zero_based: bool = False
) -> RankingData:
    """Read files one after the other; the queries of two files are never the same list.

    Args:
        files: LETOR files, or those of LightGBM's layout, whose list lengths are in ``FILE.query``.
        layout: of all files; ``auto`` looks for a qid in the first line of each.
        n_features: how many features there are; None: as many as the largest index says.
        zero_based: whether feature indices start at 0.

    Raises:
        InvalidRankingData: a file is missing, damaged, of another layout, or has more features.
    """
    import scipy.sparse

    from stimulus_moo.ranking import Queries, RankingData, has_qid, load_letor, load_lightgbm

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
    """Return the data with features turned into labels by a fitted rule."""
    from stimulus_moo.ranking import RankingData

    return data if rule is None else RankingData(*rule.apply(data.X, data.Y[:, 0]), data.qid)
