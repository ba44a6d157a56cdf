"""Strict reader of numeric ARFF files, based on ``scipy.io.arff``. Errors name the line."""

from __future__ import annotations

import re
from collections.abc import Iterator
from os import PathLike
from pathlib import Path
from typing import TextIO, cast

import numpy as np
from numpy.typing import NDArray
from scipy.io import arff

from stimulus_moo.lab.data.errors import DataError

_LONGEST_LINE = 1 << 20
_ATTRIBUTE = re.compile(r"""@attribute\s+('[^']*'|"[^"]*"|[^\s'"{}]+)\s+(\S.*)""", re.IGNORECASE)
_NUMERIC_TYPES = ("numeric", "real", "integer")
_NUMBERS = re.compile(r"[-+.0-9eE?,\s]+")


def read_numeric_arff(path: str | PathLike[str]) -> tuple[NDArray[np.float64], list[str]]:
    """Read an ARFF file whose attributes are all numeric.

    Args:
        path: the file.

    Returns:
        The table, with NaN where the file has ``?``, and the column names.

    Raises:
        DataError: not a regular file, not ARFF, a nominal, string or date attribute, a row of the wrong
            length, or a value that is not a finite number; the message names the line.

    >>> import tempfile
    >>> text = "@relation r\\n@attribute a numeric\\n@attribute b numeric\\n@data\\n1,2\\n3,?\\n"
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder, "tiny.arff")
    ...     _ = file.write_text(text)
    ...     read_numeric_arff(file)
    (array([[ 1.,  2.],
           [ 3., nan]]), ['a', 'b'])
    """
    path = Path(path)
    if not path.is_file():
        raise DataError(
            f"{path}: expected an ARFF file, found {'no regular file' if path.exists() else 'nothing'} there"
        )
    lines = None
    try:
        with path.open(encoding="utf-8") as stream:
            lines = _NumericLines(path, stream)
            records, _ = arff.loadarff(cast(TextIO, lines))
    except DataError:
        raise
    except Exception as error:  # for a damaged file, scipy raises StopIteration, IndexError, ValueError and others
        where = f", line {lines.number}" if lines else ""
        raise DataError(f"{path}{where}: expected an ARFF file with numeric attributes, found: {error!r}") from error
    if not len(records):
        raise DataError(f"{path}: expected rows after @data, found none")
    table = np.column_stack([records[name] for name in records.dtype.names or ()]).astype(np.float64)
    if np.isinf(table).any():
        raise DataError(f"{path}: expected finite numbers, found one too large for a float64")
    return table, lines.names


class _NumericLines:
    """Text file for scipy that checks each line before returning it."""

    def __init__(self, path: Path, stream: TextIO) -> None:
        self.path = path
        self.number = 0
        self.names: list[str] = []
        self._stream = stream
        self._in_data = False

    def read(self) -> str:
        """Never called: scipy only checks that this method exists."""
        raise NotImplementedError

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        line = self._stream.readline(_LONGEST_LINE)
        if not line:
            raise StopIteration
        self.number += 1
        if len(line) == _LONGEST_LINE:
            raise self._error(f"lines shorter than {_LONGEST_LINE:,} characters", "a longer one")
        text = line.strip()
        if text and not text.startswith("%"):
            (self._check_row if self._in_data else self._check_header)(text)
        return line

    def _check_header(self, text: str) -> None:
        keyword = text.split(maxsplit=1)[0].lower()
        if keyword == "@attribute":
            self._check_attribute(text)
        elif keyword == "@data":
            if not self.names:
                raise self._error("@attribute lines before @data", "none")
            self._in_data = True
        elif keyword != "@relation":
            raise self._error("@relation, @attribute or @data", _shown(text))

    def _check_attribute(self, text: str) -> None:
        match = _ATTRIBUTE.fullmatch(text)
        if not match:
            raise self._error("@attribute NAME TYPE", _shown(text))
        name, kind = match[1].strip("'\""), match[2].strip().lower()
        if kind not in _NUMERIC_TYPES:
            nominal = "the nominal" if kind.startswith("{") else "the"
            raise self._error(
                "numeric attributes only (encode others as numbers first)",
                f"{nominal} attribute {name!r} of type {_shown(match[2])}",
            )
        if name in self.names:
            raise self._error("each attribute once", f"{name!r} again")
        self.names.append(name)

    def _check_row(self, text: str) -> None:
        if not _NUMBERS.fullmatch(text):
            raise self._error("numbers or ? separated by commas", _shown(text))
        found = text.count(",") + 1
        if found != len(self.names):
            raise self._error(f"{len(self.names)} values, one per attribute", f"{found}")

    def _error(self, expected: str, found: str) -> DataError:
        return DataError(f"{self.path}, line {self.number}: expected {expected}, found {found}")


def _shown(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:57] + "...")
