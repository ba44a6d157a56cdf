"""Learning to rank with several labels: LightGBM's lambdarank example, or any folder in LETOR format."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

from stimulus_moo.lab.data.checksums import problem
from stimulus_moo.lab.data.errors import DataError
from stimulus_moo.lab.data.folders import find, how_to_get, member
from stimulus_moo.lab.data.registry import dataset

if TYPE_CHECKING:
    from stimulus_moo.ranking import RankingData


@dataclass(frozen=True)
class RankingSplits:
    """Training and test queries with the same labels, graded by the same edges.

    Attributes:
        train, test: the documents, labels and query ids.
        labels: one name per label.
        source: origin of the data, for run records and captions.
    """

    train: RankingData
    test: RankingData
    labels: tuple[str, ...]
    source: str


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
    from stimulus_moo.ranking import (
        FeatureLabels,
        RankingData,
        load_letor,
        load_lightgbm,
    )  # imports scikit-learn, which is slow

    rule = FeatureLabels(columns, grades)
    if files is None:
        folder, load, names = _registered_folder(data, download), load_lightgbm, ("rank.train", "rank.test")
    else:
        folder, load, names = Path(files), load_letor, ("train.txt", "test.txt")
    train = load(folder / names[0])
    test = load(folder / names[1], n_features=train.X.shape[1])
    rule.fit(train.X)
    chosen = ", ".join(map(str, rule.columns))
    return RankingSplits(
        train=RankingData(*rule.apply(train.X, train.Y[:, 0]), train.qid),
        test=RankingData(*rule.apply(test.X, test.Y[:, 0]), test.qid),
        labels=("grade", *(f"feature {column}" for column in rule.columns)),
        source=f"{folder}, features {chosen} as labels of up to {rule.grades} grades",
    )


def _registered_folder(data: str | PathLike[str] | None, download: bool) -> Path:
    entry = dataset("ltr")
    folder = find("ltr", data, download=download)
    for file in entry.files:
        if found := problem(file, member(folder, file) or folder / file.name):
            raise DataError(f"{found}; {how_to_get(entry)}")
    return folder
