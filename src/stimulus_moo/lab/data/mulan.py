"""Mulan multi-target files: any numeric ARFF file with several targets, one regression task each."""

from __future__ import annotations

from os import PathLike
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from stimulus_moo.errors import InvalidOption
from stimulus_moo.lab.data.arff import read_numeric_arff
from stimulus_moo.lab.data.encoding import split_rows
from stimulus_moo.lab.data.errors import DataError
from stimulus_moo.lab.data.task_data import TaskData
from stimulus_moo.options import choice, positive_integer, real, seed_number


def load_mulan(
    file: str | PathLike[str],
    *,
    targets: int,
    test_share: float = 0.2,
    validation_share: float = 0.1,
    missing: str = "drop",
    seed: int = 0,
) -> TaskData:
    """Load a file of Mulan's multi-target collection, such as ``scm1d.arff`` with 16 targets.

    Inputs and targets are standardised with the mean and standard deviation of the *training* rows, so the mean squared
    error of a target is in units of its training variance.

    Args:
        file: an ARFF file with numeric columns.
        targets: number of target columns, the last ones of the file.
        test_share: fraction of rows for the test set.
        validation_share: fraction of rows for validation; with 0, ``validation`` is empty.
        missing: ``"drop"`` leaves out rows with a missing value; ``"mean"`` replaces a missing input by the mean of the
            training rows (0 after standardisation) and leaves out rows with a missing target only.
        seed: seed of the split.

    Returns:
        ``train``, ``validation`` and ``test`` hold inputs (float32, n x inputs) and targets (float32, n x targets).

    Raises:
        DataError: the file is missing, damaged, not numeric ARFF, or has too few columns or complete rows.
        InvalidOption: targets, a share, missing or seed is out of range.

    >>> import tempfile
    >>> header = "@relation r\\n@attribute x numeric\\n@attribute y numeric\\n@attribute z numeric\\n@data\\n"
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "toy.arff")
    ...     _ = path.write_text(header + "".join(f"{row},{row % 3},{row % 5}\\n" for row in range(20)))
    ...     toy = load_mulan(path, targets=2)
    >>> toy.tasks, toy.n_train, toy.n_validation, toy.n_test
    (('y', 'z'), 14, 2, 4)
    """
    check_options(targets, test_share, validation_share, seed)
    choice("missing", missing, ("drop", "mean"))
    path = Path(file)
    table, names = read_numeric_arff(path)
    if table.shape[1] <= targets:
        raise DataError(f"{path}: expected more than {targets} columns (inputs, then targets), found {table.shape[1]}")
    needed = table if missing == "drop" else table[:, -targets:]
    usable = table[~np.isnan(needed).any(axis=1)]
    train, validation, test = split_rows(len(usable), validation=validation_share, test=test_share, seed=seed)
    if len(test) < 1 or len(train) < 2 or (validation_share > 0 and len(validation) < 1):
        raise DataError(f"{path}: expected rows without missing values for a split, found {len(usable)}")
    standard = _standardise(path, usable, train)
    splits = [_tensors(standard[rows], targets) for rows in (train, validation, test)]
    source = f"{path}, split with seed {seed}"
    validated = splits[1] if len(validation) else ()
    return TaskData(path.stem, splits[0], splits[2], tuple(names[-targets:]), False, source, validated)


def check_options(targets: int, test_share: float, validation_share: float, seed: int) -> None:
    """Check the options of ``load_mulan`` that ``load_riverflow`` shares.

    Raises:
        InvalidOption: one of them is out of range.
    """
    positive_integer("targets", targets)
    seed_number(seed)
    real("test_share", test_share, low=0.0, high=1.0, open_low=True, open_high=True)
    real("validation_share", validation_share, low=0.0, high=1.0, open_high=True)
    if test_share + validation_share >= 1:
        raise InvalidOption(
            f"test_share + validation_share must be below 1, found {test_share:g} + {validation_share:g}"
        )


def _standardise(path: Path, table: NDArray[np.float64], train: NDArray[np.int64]) -> NDArray[np.float64]:
    chosen = table[train]
    known = ~np.isnan(chosen)
    if not known.any(axis=0).all():
        column = int(np.argmin(known.any(axis=0)))
        raise DataError(
            f"{path}: expected numbers in column {column + 1} of the training rows, found none; remove the column"
        )
    mean, deviation = np.nanmean(chosen, axis=0), np.nanstd(chosen, axis=0)
    standard: NDArray[np.float64] = (table - mean) / np.where(deviation > 0, deviation, 1.0)
    return np.nan_to_num(standard, nan=0.0)


def _tensors(rows: NDArray[np.float64], targets: int) -> tuple[Tensor, Tensor]:
    table = torch.from_numpy(rows).to(torch.float32)
    return table[:, :-targets].contiguous(), table[:, -targets:].contiguous()
