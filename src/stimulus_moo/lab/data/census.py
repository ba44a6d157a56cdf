"""Census-Income (KDD): income, marital status and education of 299,285 people, one binary task each."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from stimulus_moo.errors import InvalidOption
from stimulus_moo.lab.data.encoding import encode, encoded_names, seen_categories, split_rows, standardise
from stimulus_moo.lab.data.errors import DataError
from stimulus_moo.lab.data.registered import verified_files
from stimulus_moo.lab.data.tables import TableFormat, known_values, read_table
from stimulus_moo.lab.data.task_data import TaskData
from stimulus_moo.options import real, seed_number

#: The 42 columns of the files, in their order.
COLUMNS = (
    *("age", "class of worker", "industry code", "occupation code", "education", "wage per hour"),
    *("enrolled in education", "marital status", "major industry", "major occupation", "race", "hispanic origin"),
    *("sex", "labor union", "reason for unemployment", "employment status", "capital gains", "capital losses"),
    *("stock dividends", "tax filer status", "previous region", "previous state", "household and family status"),
    *("household summary", "instance weight", "migration msa", "migration region", "migration within region"),
    *("same house a year ago", "previous residence in sunbelt", "employer size", "family members under 18"),
    *("birth country of father", "birth country of mother", "birth country", "citizenship", "own business"),
    *("veteran questionnaire", "veterans benefits", "weeks worked", "year", "income"),
)
_WEIGHT, _INCOME = "instance weight", "income"
_NUMERIC = (
    *("age", "wage per hour", "capital gains", "capital losses", "stock dividends", "employer size", "weeks worked"),
)
_INCOMES = ("- 50000.", "50000+.")
_COLLEGE = (
    "Bachelors degree(BA AB BS)",
    "Masters degree(MA MS MEng MEd MSW MBA)",
    "Prof school degree (MD DDS DVM LLB JD)",
    "Doctorate degree(PhD EdD)",
)
#: Each task: its column, and the values that count as 1.
TASKS: dict[str, tuple[str, tuple[str, ...]]] = {
    "income": (_INCOME, ("50000+.",)),
    "never married": ("marital status", ("Never married",)),
    "college": ("education", _COLLEGE),
}
_FORMAT = TableFormat(COLUMNS, numeric=frozenset({*_NUMERIC, _WEIGHT}))


def load_census(
    *,
    tasks: Sequence[str] = ("income", "never married"),
    validation_share: float = 0.1,
    seed: int = 0,
    folder: str | PathLike[str] | None = None,
    data: str | PathLike[str] | None = None,
    download: bool = True,
) -> TaskData:
    """Load Census-Income (KDD), 199,523 rows for training and validation and 99,762 rows for the test.

    The tasks are ``"income"`` (above 50,000 dollars), ``"never married"`` and ``"college"`` (a bachelor's degree or
    higher). The inputs are the first 41 columns without ``instance weight`` (column 25, counted from 1) and without
    the columns of the chosen tasks: ``marital status`` (column 8) and ``education`` (column 5). Income (column 42) is
    never an input. The columns of households and families (23 and 24) stay, as is usual with this data set, although
    some of their categories say who never married.

    Seven columns are numeric and are standardised with the mean and standard deviation of the training rows. All
    others, numeric codes included, are one-hot encoded with the categories of the training rows; a category that does
    not occur there gives zeros. The dense inputs of all rows take about 600 MB.

    Args:
        tasks: names of the tasks, in the order of the label columns.
        validation_share: fraction of the training file for validation, chosen at random.
        seed: seed of the choice.
        folder: a folder with two files of the same names and format. Default: the registered files, with verified
            checksums.
        data: data folder (``--data``), see ``folders.data_folders``.
        download: unused as long as no mirror is registered; then whether the files may be downloaded.

    Returns:
        ``train``, ``validation`` and ``test`` hold inputs (float32, n x columns) and labels (float32 of 0 and 1,
        n x tasks). ``inputs`` has the names of the columns.

    Raises:
        DataError: a file is missing, damaged or in another format; the message names the line.
        InvalidOption: a task is unknown or given twice, or validation_share or seed is out of range.
        MissingDependency: pandas is not installed.
    """
    chosen, seed = _checked_tasks(tasks), seed_number(seed)
    validation_share = real("validation_share", validation_share, low=0.0, high=1.0, open_low=True, open_high=True)
    paths = verified_files("census", data, folder=folder, download=download)
    tables = [read_table(path, _FORMAT) for path in paths]
    for path, table in zip(paths, tables, strict=True):
        known_values(path, _FORMAT, table, _INCOME, _INCOMES)
    train, validation, _ = split_rows(len(tables[0]), validation=validation_share, test=0.0, seed=seed)
    if not len(train) or not len(validation):
        raise DataError(f"{paths[0]}: expected rows for training and validation, found {len(tables[0])}")
    parts = [tables[0].iloc[train], tables[0].iloc[validation], tables[1]]
    inputs, names = _inputs(parts, chosen)
    labels = [_labels(part, chosen) for part in parts]
    splits = [(torch.from_numpy(x), y) for x, y in zip(inputs, labels, strict=True)]
    source = f"{paths[0].parent}, validation rows chosen with seed {seed}"
    return TaskData("census", splits[0], splits[2], chosen, False, source, splits[1], inputs=names)


def _checked_tasks(tasks: Sequence[str]) -> tuple[str, ...]:
    found = tuple(tasks) if isinstance(tasks, Sequence) and not isinstance(tasks, str) else ()
    if not found or len(set(found)) != len(found) or not set(found) <= set(TASKS):
        raise InvalidOption(f"tasks must name some of {', '.join(map(repr, TASKS))}, each once, found {tasks!r}")
    return found


def _inputs(parts: Sequence[Any], tasks: Sequence[str]) -> tuple[list[NDArray[np.float32]], tuple[str, ...]]:
    """Return the encoded inputs of the splits, training first, and the names of their columns."""
    removed = {_WEIGHT, _INCOME, *_NUMERIC, *(TASKS[task][0] for task in tasks)}
    categories = seen_categories(parts[0], [name for name in COLUMNS if name not in removed])
    encoded = [encode(part, _NUMERIC, categories) for part in parts]
    standardise(*encoded, columns=len(_NUMERIC))
    return encoded, encoded_names(_NUMERIC, categories)


def _labels(part: Any, tasks: Sequence[str]) -> Tensor:
    columns = [part[TASKS[task][0]].isin(TASKS[task][1]).to_numpy() for task in tasks]
    return torch.from_numpy(np.column_stack(columns).astype(np.float32))
