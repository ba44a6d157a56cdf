"""Data sets on fairness, encoded as in COSMOS (Ruchte and Grabocka, 2021): Adult, COMPAS and credit default."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from stimulus_moo.lab.data.dependencies import optional
from stimulus_moo.lab.data.encoding import encode, encoded_names, seen_categories, split_rows, standardise
from stimulus_moo.lab.data.errors import DataError
from stimulus_moo.lab.data.registered import verified_files
from stimulus_moo.lab.data.tables import TableFormat, known_values, read_table, row_error
from stimulus_moo.lab.data.task_data import TaskData
from stimulus_moo.options import seed_number

_FEWEST_ROWS = 10  # 70/10/20 needs a row in each split
_ADULT_NUMBERS = ("age", "fnlwgt", "education-num", "capital-gain", "capital-loss", "hours-per-week")
_ADULT = TableFormat(
    (
        *("age", "workclass", "fnlwgt", "education", "education-num", "marital-status", "occupation", "relationship"),
        *("race", "sex", "capital-gain", "capital-loss", "hours-per-week", "native-country", "income"),
    ),
    numeric=frozenset(_ADULT_NUMBERS),
    comment="|",
)
_INCOMES = ("<=50K", ">50K", "<=50K.", ">50K.")  # the test file has a full stop
_MOST_FREQUENT = {"workclass": "Private", "occupation": "Prof-specialty", "native-country": "United-States"}
_EDUCATION = {
    **dict.fromkeys(("Preschool", "1st-4th", "5th-6th", "7th-8th", "9th", "10th", "11th", "12th"), "no diploma"),
    **dict.fromkeys(("Assoc-voc", "Assoc-acdm", "Prof-school", "Some-college"), "some college"),
}
_MARRIED = ("Married-civ-spouse", "Married-AF-spouse")

_COMPAS_NUMBERS = ("age", "priors_count", "days_b_screening_arrest", "decile_score", "is_recid")
_COMPAS_CATEGORIES = ("c_charge_degree", "race", "age_cat", "score_text")
_COMPAS = TableFormat(
    (*_COMPAS_NUMBERS, *_COMPAS_CATEGORIES, "sex", "two_year_recid", "c_jail_in", "c_jail_out"),
    numeric=frozenset((*_COMPAS_NUMBERS, "two_year_recid")),
    gaps=frozenset({"days_b_screening_arrest"}),
    header=True,
)
_MOMENT = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d"

_PAYMENTS = ("PAY_0", "PAY_2", "PAY_3", "PAY_4", "PAY_5", "PAY_6")
_AMOUNTS = (*(f"BILL_AMT{month}" for month in range(1, 7)), *(f"PAY_AMT{month}" for month in range(1, 7)))
_ONE_HOT = (*(f"EDUCATION_{level}" for level in range(7)), *(f"MARRIAGE_{state}" for state in range(4)))
_CREDIT_NUMBERS = ("ID", "LIMIT_BAL", "AGE", *_AMOUNTS, *_ONE_HOT)
_DEFAULT = "default-payment-next-month"
_CREDIT = TableFormat(
    (*_CREDIT_NUMBERS, *_PAYMENTS, "SEX", _DEFAULT),
    numeric=frozenset((*_CREDIT_NUMBERS, *_PAYMENTS, "SEX", _DEFAULT)),
    header=True,
)


def load_adult(
    *,
    seed: int = 0,
    folder: str | PathLike[str] | None = None,
    data: str | PathLike[str] | None = None,
    download: bool = True,
) -> TaskData:
    """Load Adult: 48,842 people, 88 inputs, the label income above 50,000 dollars, and sex as sensitive attribute.

    The rows of ``adult.data`` and ``adult.test`` are split at random: 70% training, 10% validation, 20% test. The 88
    inputs are those of COSMOS: 6 numbers and 82 one-hot columns of 7 categorical ones, where ``?`` is replaced by
    the most frequent value, the eight levels of education below a diploma are one, four levels of some college are
    one, and marital status is married or not. Categories are those of all rows.

    Every input is standardised with the mean and standard deviation of the training rows; COSMOS uses those of all
    rows. A one-hot column without a training row is left as it is.

    Args:
        seed: seed of the split.
        folder: a folder with two files of the same names and format. Default: the registered files, with verified
            checksums.
        data: data folder (``--data``), see ``folders.data_folders``.
        download: whether the files may be downloaded if they are not found.

    Returns:
        ``train``, ``validation`` and ``test`` hold inputs (float32, n x 88), the label (float32 of 0 and 1, n) and the
        sensitive attribute (int64, n): 1 for women, 0 for men.

    Raises:
        DataError: a file is missing, damaged or in another format; the message names the line.
        InvalidOption: the seed is out of range.
        MissingDependency: pandas is not installed.
    """
    seed = seed_number(seed)
    paths = verified_files("adult", data, folder=folder, download=download)
    tables = [read_table(path, _ADULT) for path in paths]
    for path, part in zip(paths, tables, strict=True):
        known_values(path, _ADULT, part, "income", _INCOMES)
        known_values(path, _ADULT, part, "sex", ("Female", "Male"))
    table = optional("pandas").concat([part.astype(dict.fromkeys(_text(_ADULT), "str")) for part in tables])
    for column, value in _MOST_FREQUENT.items():
        table[column] = table[column].replace("?", value)
    table["education"] = table["education"].replace(_EDUCATION)
    table["marital-status"] = table["marital-status"].isin(_MARRIED).map({True: "married", False: "not married"})
    categorical = [name for name in _text(_ADULT) if name not in ("sex", "income")]
    label = table["income"].str.startswith(">").to_numpy()
    women = (table["sex"] == "Female").to_numpy()
    return _split("adult", "income", table, _ADULT_NUMBERS, categorical, (label, women), paths, seed)


def load_compas(
    *,
    seed: int = 0,
    folder: str | PathLike[str] | None = None,
    data: str | PathLike[str] | None = None,
    download: bool = True,
) -> TaskData:
    """Load COMPAS: 6,172 defendants, 20 inputs, the label recidivism within two years, and sex as sensitive attribute.

    The rows are those of ProPublica's analysis: screened within 30 days of the arrest, with known recidivism, no
    ordinary traffic offence, and a score. They are split at random: 70% training, 10% validation, 20% test. The 20
    inputs are those of COSMOS: 6 numbers (the last is the length of the stay in jail, in whole hours) and 14 one-hot
    columns of charge degree, race, age group and score. One of them, ``is_recid``, nearly determines the label:
    recidivism at any time.

    Scaling, arguments and errors are those of ``load_adult``; here, ``folder`` has one file.

    Returns:
        ``train``, ``validation`` and ``test`` hold inputs (float32, n x 20), the label (float32 of 0 and 1, n) and the
        sensitive attribute (int64, n): 1 for women, 0 for men.
    """
    seed = seed_number(seed)
    paths = verified_files("compas", data, folder=folder, download=download)
    table = read_table(paths[0], _COMPAS)
    known_values(paths[0], _COMPAS, table, "sex", ("Female", "Male"))
    _check_binary(paths[0], _COMPAS, table, "two_year_recid")
    kept = table["days_b_screening_arrest"].between(-30, 30) & (table["is_recid"] != -1)
    kept &= (table["c_charge_degree"] != "O") & (table["score_text"] != "N/A")
    stay = _moments(paths[0], table, "c_jail_out", kept) - _moments(paths[0], table, "c_jail_in", kept)
    table = table[kept].assign(length_of_stay=np.floor(stay.dt.total_seconds().to_numpy()[kept] / 3600))
    label, women = table["two_year_recid"].to_numpy() == 1, (table["sex"] == "Female").to_numpy()
    numbers = (*_COMPAS_NUMBERS, "length_of_stay")
    return _split("compas", "recidivism", table, numbers, _COMPAS_CATEGORIES, (label, women), paths, seed)


def load_credit(
    *,
    seed: int = 0,
    folder: str | PathLike[str] | None = None,
    data: str | PathLike[str] | None = None,
    download: bool = True,
) -> TaskData:
    """Load credit card defaults: 30,000 clients, 90 inputs, the label default, and sex as sensitive attribute.

    The rows are split at random: 70% training, 10% validation, 20% test. The 90 inputs are those of COSMOS: 15
    numbers, among them the row number ``ID``, which says nothing, 11 one-hot columns of education and marital status,
    and 64 of the six payment states. In the file, ``SEX`` is 1 for women and 0 for men (in UCI's table 2 and 1), and
    education and marital status are one-hot encoded already.

    Scaling, arguments and errors are those of ``load_adult``; here, ``folder`` has one file, and no mirror is
    registered.

    Returns:
        ``train``, ``validation`` and ``test`` hold inputs (float32, n x 90), the label (float32 of 0 and 1, n) and the
        sensitive attribute (int64, n): 1 for women, 0 for men.
    """
    seed = seed_number(seed)
    paths = verified_files("credit", data, folder=folder, download=download)
    table = read_table(paths[0], _CREDIT)
    for column in (_DEFAULT, "SEX", *_ONE_HOT):
        _check_binary(paths[0], _CREDIT, table, column)
    label, women = table[_DEFAULT].to_numpy() == 1, table["SEX"].to_numpy() == 1
    return _split("credit", "default", table, _CREDIT_NUMBERS, _PAYMENTS, (label, women), paths, seed)


def _text(layout: TableFormat) -> list[str]:
    return [name for name in layout.columns if name not in layout.numeric]


def _check_binary(path: Path, layout: TableFormat, table: Any, column: str) -> None:
    strange = ~np.isin(table[column].to_numpy(), (0, 1))
    if strange.any():
        row = int(np.argmax(strange))
        raise row_error(path, layout, row, column, "0 or 1", float(table[column].iloc[row]))


def _moments(path: Path, table: Any, column: str, kept: Any) -> Any:
    """Return a column as dates with time; rows that are not kept may have anything."""
    text = table[column].astype("str")
    dates = text.where(text.str.fullmatch(_MOMENT))  # pandas would also take words such as "today"
    moments = optional("pandas").to_datetime(dates, format="%Y-%m-%d %H:%M:%S", errors="coerce")
    strange = (moments.isna() & kept).to_numpy()
    if strange.any():
        row = int(np.argmax(strange))
        raise row_error(path, _COMPAS, row, column, "a date with time, YYYY-MM-DD HH:MM:SS", table[column].iloc[row])
    return moments


def _split(
    name: str,
    task: str,
    table: Any,
    numeric: Sequence[str],
    categorical: Sequence[str],
    targets: tuple[NDArray[np.bool_], NDArray[np.bool_]],
    paths: Sequence[Path],
    seed: int,
) -> TaskData:
    """Encode, split and standardise; ``targets`` are the label and the sensitive attribute."""
    if len(table) < _FEWEST_ROWS:
        raise DataError(f"{paths[0]}: expected at least {_FEWEST_ROWS} rows to split, found {len(table)}")
    categories = seen_categories(table, categorical)
    encoded = encode(table, numeric, categories)
    rows = split_rows(len(table), validation=0.1, test=0.2, seed=seed)
    inputs = [encoded[part] for part in rows]
    standardise(*inputs)
    label, sensitive = (torch.tensor(target) for target in targets)
    train, validation, test = (
        (torch.from_numpy(x), label[part].to(torch.float32), sensitive[part].to(torch.int64))
        for x, part in zip(inputs, map(torch.from_numpy, rows), strict=True)
    )
    names = encoded_names(numeric, categories)
    source = f"{', '.join(map(str, paths))}, split with seed {seed}"
    return TaskData(name, train, test, (task,), False, source, validation, inputs=names)
