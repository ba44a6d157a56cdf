"""Encoding of data frames as float32 inputs: numbers standardised, categories one-hot; and splits of rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Rows = NDArray[np.int64]


def split_rows(n: int, *, validation: float, test: float, seed: int) -> tuple[Rows, Rows, Rows]:
    """Return the row numbers of the training, validation and test set, drawn at random.

    Args:
        n: number of rows.
        validation, test: fractions of the rows, rounded to whole rows.
        seed: seed of the permutation.

    >>> [len(part) for part in split_rows(10, validation=0.1, test=0.2, seed=0)]
    [7, 1, 2]
    """
    order = np.random.default_rng(seed).permutation(n)
    n_test, n_validation = round(n * test), round(n * validation)
    return order[n_test + n_validation :], order[n_test : n_test + n_validation], order[:n_test]


def seen_categories(frame: Any, columns: Sequence[str]) -> dict[str, list[Any]]:
    """Return the values of each column that occur in the frame, sorted."""
    return {name: sorted(frame[name].unique()) for name in columns}


def encode(frame: Any, numeric: Sequence[str], categories: Mapping[str, Sequence[Any]]) -> Floats:
    """Encode a data frame: the numeric columns as they are, then one column of 0 and 1 per category.

    Args:
        frame: a pandas data frame.
        numeric: names of the numeric columns.
        categories: values of each categorical column; another value gives zeros in all columns of its name.

    >>> import pandas
    >>> frame = pandas.DataFrame({"age": [3.0, 5.0], "colour": ["red", "pink"]})
    >>> encode(frame, ["age"], {"colour": ["blue", "red"]}).tolist()
    [[3.0, 0.0, 1.0], [5.0, 0.0, 0.0]]
    """
    from pandas import Index  # slow, and optional

    result = np.zeros((len(frame), len(numeric) + sum(map(len, categories.values()))), np.float32)
    for place, name in enumerate(numeric):
        result[:, place] = frame[name].to_numpy()
    start = len(numeric)
    for name, values in categories.items():
        column = frame[name].astype("category").cat
        place_of = Index(values).get_indexer(column.categories)  # -1 for an unknown category
        places = np.append(place_of, -1)[column.codes]
        known = np.flatnonzero(places >= 0)
        result[known, start + places[known]] = 1.0
        start += len(values)
    return result


def encoded_names(numeric: Sequence[str], categories: Mapping[str, Sequence[Any]]) -> tuple[str, ...]:
    """Return the names of the columns of ``encode``.

    >>> encoded_names(["age"], {"colour": ["blue", "red"]})
    ('age', 'colour=blue', 'colour=red')
    """
    return (*numeric, *(f"{name}={value}" for name, values in categories.items() for value in values))


def standardise(train: Floats, *others: Floats, columns: int | None = None) -> None:
    """Scale columns in place to mean 0 and standard deviation 1 of the training rows.

    Args:
        train: the training rows, which give mean and standard deviation.
        others: rows of the other splits.
        columns: how many columns to scale, from the first; None for all. A column that is constant in ``train`` is
            only shifted.
    """
    chosen = train[:, :columns].astype(np.float64)
    mean, deviation = chosen.mean(axis=0), chosen.std(axis=0)
    scale = np.where(deviation > 0, deviation, 1.0)
    for rows in (train, *others):
        rows[:, :columns] = (rows[:, :columns] - mean) / scale
