"""River flow RF1: flows of the Mississippi at eight sites, one regression task per target column."""

from __future__ import annotations

from dataclasses import replace
from os import PathLike
from pathlib import Path

from stimulus_moo.lab.data.mulan import check_options, load_mulan
from stimulus_moo.lab.data.registered import verified_files
from stimulus_moo.lab.data.task_data import TaskData


def load_riverflow(
    *,
    targets: int = 8,
    test_share: float = 0.2,
    validation_share: float = 0.0,
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
        validation_share: fraction of rows for validation; with 0, ``validation`` is empty.
        seed: seed of the split.
        file: an ARFF file with numeric columns. Default: RF1, with a verified checksum.
        data: data folder (``--data``), see ``folders.data_folders``.
        download: whether RF1 may be downloaded if it is not found.

    Returns:
        ``train``, ``validation`` and ``test`` hold inputs (float32, n x inputs) and targets (float32, n x targets).

    Raises:
        DataError: the file is missing, damaged, not numeric ARFF, or has too few columns or complete rows.
        InvalidOption: targets, a share or seed is out of range.
    """
    check_options(targets, test_share, validation_share, seed)
    path = verified_files("riverflow", data, download=download)[0] if file is None else Path(file)
    flows = load_mulan(path, targets=targets, test_share=test_share, validation_share=validation_share, seed=seed)
    return replace(flows, name="riverflow") if file is None else flows
