"""Strict reader of comma-separated files, gzipped or plain, based on pandas. Errors name the line and the column."""

from __future__ import annotations

import csv
import gzip
import zlib
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import TextIOWrapper
from math import isfinite
from os import PathLike
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from stimulus_moo.lab.data.dependencies import optional
from stimulus_moo.lab.data.errors import DataError

_GZIP_MAGIC = b"\x1f\x8b"
_FIX = "correct the file, or get it again"


@dataclass(frozen=True)
class TableFormat:
    """Format of a comma-separated file. Spaces after a comma are ignored, and so are empty lines.

    Attributes:
        columns: the columns to read. Without a header, these are all columns of the file, in its order.
        numeric: the columns with finite numbers; the others have text.
        gaps: the numeric columns that may have empty fields.
        header: whether the first line has the column names. The file may then have more columns, in any order; of
            columns with the same name the first is read.
        comment: lines that start with this are ignored.
    """

    columns: tuple[str, ...]
    numeric: frozenset[str] = frozenset()
    gaps: frozenset[str] = frozenset()
    header: bool = False
    comment: str = ""


def read_table(path: str | PathLike[str], layout: TableFormat) -> Any:
    """Read a comma-separated file into a pandas data frame.

    Args:
        path: the file. Its first bytes, not its name, determine whether it is gzipped.
        layout: the format of the file.

    Returns:
        A data frame with ``layout.columns`` in this order: float64 if numeric, with NaN in gaps, otherwise categories.

    Raises:
        DataError: not a regular file, damaged, without rows, a column is missing, a row has another number of fields,
            or a field is not a finite number; the message names the line.
        MissingDependency: pandas is not installed.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder, "tiny.csv")
    ...     _ = file.write_text("name, age\\nAda, 36\\nAlan, 41\\n")
    ...     table = read_table(file, TableFormat(("age", "name"), numeric=frozenset({"age"}), header=True))
    >>> table["age"].tolist(), table["name"].tolist()
    ([36.0, 41.0], ['Ada', 'Alan'])
    """
    pandas, path = optional("pandas"), Path(path)
    names, places = _check_fields(path, layout)
    text = [name for name in layout.columns if name not in layout.numeric]
    with _opened(path) as stream:
        try:
            table = pandas.read_csv(
                stream,
                header=0 if layout.header else None,
                names=[f"{place}" for place in range(len(names))],
                usecols=sorted(places.values()),
                dtype={f"{places[name]}": "category" if name in text else np.float64 for name in layout.columns},
                na_values={f"{places[name]}": [""] for name in layout.gaps},
                keep_default_na=False,
                skipinitialspace=True,
                comment=layout.comment or None,
            )
        except (ValueError, OverflowError) as error:  # includes pandas' ParserError and UnicodeDecodeError
            _check_numbers(path, layout, places)
            raise DataError(f"{path}: expected a comma-separated file, found: {error}; {_FIX}") from error
    table = table.rename(columns={f"{places[name]}": name for name in layout.columns})[list(layout.columns)]
    for name in layout.numeric:
        values = table[name].to_numpy()
        if np.isinf(values).any() or (name not in layout.gaps and np.isnan(values).any()):
            _check_numbers(path, layout, places)
    return table


def row_error(path: Path, layout: TableFormat, row: int, column: str, expected: str, found: object) -> DataError:
    """Return the error of one field. ``row`` counts the rows of the table from 0; the message names the line."""
    lines = [line for line, _ in _rows(path, layout)]
    return DataError(f"{path}, line {lines[row]}, column {column!r}: expected {expected}, found {found!r}; {_FIX}")


@contextmanager
def _opened(path: Path) -> Iterator[TextIO]:
    """Open a file for reading as text; errors of reading become DataError."""
    if not path.is_file():
        found = "no regular file" if path.exists() else "nothing"
        raise DataError(f"{path}: expected a comma-separated file, found {found} there")
    try:
        with path.open("rb") as raw:
            packed = raw.read(2) == _GZIP_MAGIC
            raw.seek(0)
            stream: Any = gzip.GzipFile(fileobj=raw) if packed else raw
            with TextIOWrapper(stream, encoding="utf-8", newline="") as lines:
                yield lines
    except (EOFError, OSError, zlib.error, UnicodeDecodeError, csv.Error) as error:
        raise DataError(
            f"{path}: expected an intact comma-separated file, found it truncated or damaged ({error}); get it again"
        ) from error


def _records(path: Path, comment: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the line number and the fields of every record that is neither empty nor a comment."""
    with _opened(path) as stream:
        reader = csv.reader(stream, skipinitialspace=True)
        for fields in reader:
            if fields and not (comment and fields[0].startswith(comment)):
                yield reader.line_num, fields


def _rows(path: Path, layout: TableFormat) -> Iterator[tuple[int, list[str]]]:
    records = _records(path, layout.comment)
    if layout.header:
        next(records, None)
    return records


def _check_fields(path: Path, layout: TableFormat) -> tuple[Sequence[str], dict[str, int]]:
    """Return the names of all columns and the place of each wanted one, after checking that every row is complete."""
    records = _records(path, layout.comment)
    names: Sequence[str] = layout.columns
    if layout.header:
        line, names = next(records, (0, []))
        if missing := [name for name in layout.columns if name not in names]:
            raise DataError(
                f"{path}, line {line}: expected the column {missing[0]!r} in the header, "
                f"found {', '.join(names)[:200] or 'an empty file'}; {_FIX}"
            )
    count = 0
    for line, fields in records:
        count += 1
        if len(fields) != len(names):
            raise DataError(
                f"{path}, line {line}: expected {len(names)} fields separated by commas, found {len(fields)}; {_FIX}"
            )
    if not count:
        raise DataError(f"{path}: expected rows, found none; get it again")
    return names, {name: list(names).index(name) for name in layout.columns}


def _check_numbers(path: Path, layout: TableFormat, places: dict[str, int]) -> None:
    """Raise the error of the first numeric field that is not a finite number."""
    for line, fields in _rows(path, layout):
        for name in layout.columns:
            text = fields[places[name]]
            if name in layout.numeric and not _is_number(text, name in layout.gaps):
                raise DataError(
                    f"{path}, line {line}, column {name!r}: expected a finite number, found {text[:60]!r}; {_FIX}"
                )


def _is_number(text: str, may_be_empty: bool) -> bool:
    if not text:
        return may_be_empty
    try:
        return isfinite(float(text))
    except ValueError:
        return False


def known_values(path: Path, layout: TableFormat, table: Any, column: str, values: Collection[str]) -> None:
    """Check that a text column has no other values than these.

    Raises:
        DataError: it has; the message names the first line that does.
    """
    strange = ~table[column].isin(list(values)).to_numpy()
    if strange.any():
        row = int(np.argmax(strange))
        expected = " or ".join(repr(value) for value in values)
        raise row_error(path, layout, row, column, expected, table[column].iloc[row])
