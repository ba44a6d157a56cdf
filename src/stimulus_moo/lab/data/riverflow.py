"""River flow RF1 and other Mulan multi-target files: one regression task per target column."""

from __future__ import annotations

from os import PathLike
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from stimulus_moo.lab.data.arff import read_numeric_arff
from stimulus_moo.lab.data.checksums import problem
from stimulus_moo.lab.data.errors import DataError
from stimulus_moo.lab.data.folders import find, how_to_get, member
from stimulus_moo.lab.data.registry import dataset
from stimulus_moo.lab.data.task_data import TaskData
from stimulus_moo.options import positive_integer, real, seed_number


def load_riverflow(
    *,
    targets: int = 8,
    test_share: float = 0.2,
    seed: int = 0,
    file: str | PathLike[str] | None = None,
    data: str | PathLike[str] | None = None,
    download: bool = True,
) -> TaskData:
    """Load RF1 (64 inputs, 8 targets, 9005 complete rows of 9125), or any Mulan ARFF file.

    Rows with missing values are dropped. Inputs and targets are standardised with the mean and standard deviation of
    the *training* rows, so the mean squared error of a target is in units of its training variance.

    Args:
        targets: number of target columns, the last ones of the file.
        test_share: fraction of rows for the test set.
        seed: seed of the split.
        file: an ARFF file with numeric columns. Default: RF1, with a verified checksum.
        data: data folder (``--data``), see ``folders.data_folders``.
        download: whether RF1 may be downloaded if it is not found.

    Returns:
        ``train`` and ``test`` hold inputs (float32, n x inputs) and targets (float32, n x targets).

    Raises:
        DataError: the file is missing, damaged, not numeric ARFF, or has too few columns or complete rows.
        InvalidOption: targets, test_share or seed is out of range.
    """
    targets, seed = positive_integer("targets", targets), seed_number(seed)
    test_share = real("test_share", test_share, low=0.0, high=1.0, open_low=True, open_high=True)
    path = _registered_file(data, download) if file is None else Path(file)
    table, names = read_numeric_arff(path)
    if table.shape[1] <= targets:
        raise DataError(f"{path}: expected more than {targets} columns (inputs, then targets), found {table.shape[1]}")
    complete = table[~np.isnan(table).any(axis=1)]
    held_out = round(len(complete) * test_share)
    if held_out < 1 or len(complete) - held_out < 2:
        raise DataError(f"{path}: expected rows without missing values for a split, found {len(complete)}")
    order = np.random.default_rng(seed).permutation(len(complete))
    standard = _standardise(complete, order[held_out:])
    train, test = (_tensors(standard[rows], targets) for rows in (order[held_out:], order[:held_out]))
    name = "riverflow" if file is None else path.stem
    return TaskData(name, train, test, tuple(names[-targets:]), False, f"{path}, split with seed {seed}")


def _registered_file(data: str | PathLike[str] | None, download: bool) -> Path:
    entry = dataset("riverflow")
    folder = find("riverflow", data, download=download)
    path = member(folder, entry.files[0]) or folder / entry.files[0].name
    if found := problem(entry.files[0], path):
        raise DataError(f"{found}; {how_to_get(entry)}; for another ARFF file name it instead")
    return path


def _standardise(table: NDArray[np.float64], train: NDArray[np.int64]) -> NDArray[np.float64]:
    mean, deviation = table[train].mean(axis=0), table[train].std(axis=0)
    standard: NDArray[np.float64] = (table - mean) / np.where(deviation > 0, deviation, 1.0)
    return standard


def _tensors(rows: NDArray[np.float64], targets: int) -> tuple[Tensor, Tensor]:
    table = torch.from_numpy(rows).to(torch.float32)
    return table[:, :-targets].contiguous(), table[:, -targets:].contiguous()
