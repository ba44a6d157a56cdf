"""Learning to rank with several labels: LightGBM's lambdarank example, MQ2008, or any folder in LETOR format."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.sparse import vstack

from stimulus_moo.errors import InvalidOption
from stimulus_moo.lab.data.registered import verified_files
from stimulus_moo.options import positive_integer

if TYPE_CHECKING:
    from stimulus_moo.ranking import FeatureLabels, RankingData

_MQ2008_FEATURES = 46
_FOLDS = 5
#: What features of MQ2008 are, counted from 0; see ``load_mq2008``.
_MQ2008_NAMES = {43: "PageRank", 44: "inlinks"}


@dataclass(frozen=True)
class RankingSplits:
    """Training and test queries with the same labels, graded by the same edges.

    Attributes:
        train, test: the documents, labels and query ids.
        labels: one name per label.
        source: origin of the data, for run records and captions.
        validation: the validation queries; None if the data set has none.
    """

    train: RankingData
    test: RankingData
    labels: tuple[str, ...]
    source: str
    validation: RankingData | None = None


def load_ltr(
    *,
    columns: Sequence[int],
    grades: int = 5,
    files: str | PathLike[str] | None = None,
    data: str | PathLike[str] | None = None,
    download: bool = True,
) -> RankingSplits:
    """Load graded queries; some features are used as additional labels instead of inputs.

    Args:
        columns: features, counted from 0, that become labels 1, 2, ...; the graded label is label 0.
        grades: maximum number of grades of such a label; the bin edges are computed from the training rows.
        files: a folder with ``train.txt`` and ``test.txt`` in LETOR format, such as a fold of MSLR-WEB10K. Default: the
            lambdarank example (201 + 50 queries, 300 features), with verified checksums.
        data: data folder (``--data``), see ``folders.data_folders``.
        download: whether the example may be downloaded if it is not found.

    Raises:
        DataError: a file is missing or damaged.
        InvalidOption: columns or grades are invalid.
        InvalidRankingData: a file has another format, or a column cannot be a label.
    """
    from stimulus_moo.ranking import FeatureLabels, load_letor, load_lightgbm  # imports scikit-learn, which is slow

    rule = FeatureLabels(columns, grades)
    if files is None:
        folder = verified_files("ltr", data, download=download)[0].parent
        load, names = load_lightgbm, ("rank.train", "rank.test")
    else:
        folder, load, names = Path(files), load_letor, ("train.txt", "test.txt")
    train = load(folder / names[0])
    test = load(folder / names[1], n_features=train.X.shape[1])
    rule.fit(train.X)
    chosen = ", ".join(map(str, rule.columns))
    return RankingSplits(
        train=_relabelled(train, rule),
        test=_relabelled(test, rule),
        labels=("grade", *(f"feature {column}" for column in rule.columns)),
        source=f"{folder}, features {chosen} as labels of up to {rule.grades} grades",
    )


def load_mq2008(
    *,
    fold: int = 1,
    columns: Sequence[int] = (43, 44),
    grades: int = 5,
    folder: str | PathLike[str] | None = None,
    data: str | PathLike[str] | None = None,
    download: bool = True,
) -> RankingSplits:
    """Load a fold of LETOR 4.0 MQ2008 (784 queries, 46 features); features become further labels, not inputs.

    Fold k trains on the parts k, k + 1 and k + 2, validates on k + 3 and tests on k + 4, counted in a circle from S1 to
    S5, as in the official list of folds.

    The default further labels are PageRank and the number of inlinks, features 44 and 45 of the file, which counts
    features from 1; ``columns`` counts from 0. The readme of the data lists only the folds. In the order of LETOR 3.0
    (PageRank, inlinks, outlinks, slashes in the URL, length of the URL, child pages) they would be features 41 and 42,
    but the values of all five parts say otherwise, and a test repeats this on S1:

    ======= ================================== ========================================== ======================
    feature values within a query              mean rank correlation within queries       so it is
    ======= ================================== ========================================== ======================
    41, 42  multiples of 1/5 and 1/60 (median) 0.70, 0.80 with 19, the length of the URL  slashes, length of URL
    43      0 everywhere                       none                                       no data
    44      no multiples of one fraction       0.76 with 45, 0.48 with 17 (anchor texts)  PageRank
    45      multiples of one fraction          0.76 with 44, 0.55 with 17 (anchor texts)  inlinks
    46      multiples of one fraction          0.34 with 44, 0.17 with 17                 outlinks
    ======= ================================== ========================================== ======================

    Args:
        fold: 1 to 5.
        columns: features, counted from 0, that become labels 1, 2, ...; the graded label is label 0. Column 42, feature
            43 of the file, cannot be a label.
        grades: maximum number of grades of such a label; the bin edges are computed from the training rows.
        folder: a folder with ``S1.txt`` to ``S5.txt``, gzipped or not. Default: the registered files, with verified
            checksums.
        data: data folder (``--data``), see ``folders.data_folders``.
        download: unused as long as no mirror is registered; then whether the files may be downloaded.

    Returns:
        ``train``, ``validation`` and ``test``, with float32 CSR inputs (rows x 44 by default) and labels (rows x 3).

    Raises:
        DataError: a file is missing or damaged.
        InvalidOption: fold, columns or grades is invalid.
        InvalidRankingData: a file has another format, or a column cannot be a label.
    """
    from stimulus_moo.ranking import FeatureLabels, load_letor

    rule = FeatureLabels(columns, grades)
    if positive_integer("fold", fold) > _FOLDS:
        raise InvalidOption(f"fold must be 1 to {_FOLDS}, found {fold!r}")
    paths = verified_files("mq2008", data, folder=folder, download=download)
    parts = [load_letor(paths[(fold - 1 + step) % _FOLDS], n_features=_MQ2008_FEATURES) for step in range(_FOLDS)]
    train = _joined(parts[:3])
    rule.fit(train.X)
    names = tuple(_MQ2008_NAMES.get(column, f"feature {column}") for column in rule.columns)
    return RankingSplits(
        train=_relabelled(train, rule),
        test=_relabelled(parts[4], rule),
        labels=("grade", *names),
        source=f"{paths[0].parent}, fold {fold}, {', '.join(names)} as labels of up to {rule.grades} grades",
        validation=_relabelled(parts[3], rule),
    )


def _relabelled(part: RankingData, rule: FeatureLabels) -> RankingData:
    from stimulus_moo.ranking import RankingData

    return RankingData(*rule.apply(part.X, part.Y[:, 0]), part.qid)


def _joined(parts: Sequence[RankingData]) -> RankingData:
    from stimulus_moo.ranking import RankingData

    X: Any = vstack([part.X for part in parts], format="csr")
    Y, qid = (np.concatenate(arrays) for arrays in zip(*((part.Y, part.qid) for part in parts), strict=True))
    return RankingData(X, Y, qid)
