"""Strict readers of CelebA's two text files: the attributes and the split of each image."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from stimulus_moo.lab.data.errors import DataError

ATTRIBUTES = 40
_LARGEST_FILE = 1 << 28  # the official attribute list has 27 MB
_FILE_NAME = re.compile(r"\w[\w.-]*\.(jpg|jpeg|png)", re.ASCII | re.IGNORECASE)
_BINARY = frozenset({"-1", "1"})


@dataclass(frozen=True)
class AttributeTable:
    """Content of ``list_attr_celeba.txt``: files, attribute names, and one row of booleans per file."""

    files: tuple[str, ...]
    names: tuple[str, ...]
    values: NDArray[np.bool_]


def read_attributes(path: Path) -> AttributeTable:
    """Read ``list_attr_celeba.txt``: a count, 40 names, then per image its file and 40 times -1 or 1.

    Raises:
        DataError: the file is missing or has another layout; the message names the line.
    """
    lines = _lines(path)
    count = _count(path, next(lines, ""))
    names = tuple(next(lines, "").split())
    if len(names) != ATTRIBUTES or len(set(names)) != ATTRIBUTES:
        raise DataError(f"{path}, line 2: expected {ATTRIBUTES} different attribute names, found {len(set(names))}")
    files: list[str] = []
    rows = bytearray()
    for number, line in enumerate(lines, start=3):
        name, *values = line.split()
        if len(values) != ATTRIBUTES or not _BINARY.issuperset(values):
            raise DataError(
                f"{path}, line {number}: expected a file and {ATTRIBUTES} times -1 or 1, found {line[:60]!r}"
            )
        files.append(_checked_name(path, number, name))
        rows += bytes([value == "1" for value in values])
    if len(files) != count:
        raise DataError(f"{path}: expected {count} images, as line 1 says, found {len(files)}; is the file truncated?")
    if len(set(files)) != count:
        raise DataError(f"{path}: expected each image once, found {count - len(set(files))} repeated")
    return AttributeTable(tuple(files), names, np.frombuffer(rows, np.bool_).reshape(count, ATTRIBUTES))


def read_partition(path: Path, files: Sequence[str]) -> NDArray[np.int64]:
    """Read ``list_eval_partition.txt``: per image its file and 0 (train), 1 (valid) or 2 (test).

    Args:
        path: the file.
        files: images of the attribute list; the partition must have the same ones in the same order.

    Returns:
        One number per image.

    Raises:
        DataError: the file is missing, has another layout, or names other images.
    """
    partition: list[int] = []
    for number, line in enumerate(_lines(path), start=1):
        name, *values = line.split()
        if len(values) != 1 or values[0] not in ("0", "1", "2"):
            raise DataError(f"{path}, line {number}: expected a file name and 0, 1 or 2, found {line[:60]!r}")
        expected = files[number - 1] if number <= len(files) else "the end of the file"
        if name != expected:
            raise DataError(
                f"{path}, line {number}: expected {expected} as in list_attr_celeba.txt, found {name[:60]!r}"
            )
        partition.append(int(values[0]))
    if len(partition) != len(files):
        raise DataError(
            f"{path}: expected {len(files)} images, as list_attr_celeba.txt has, found {len(partition)}; "
            "is the file truncated?"
        )
    return np.array(partition, dtype=np.int64)


def _lines(path: Path) -> Iterator[str]:
    if not path.is_file():
        raise DataError(f"{path}: expected one of CelebA's lists, found no regular file")
    try:
        size = path.stat().st_size
        if size > _LARGEST_FILE:
            raise DataError(f"{path}: expected at most {_LARGEST_FILE:,} bytes, found {size:,}")
        text = path.read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: expected a readable ASCII text file, found: {error}") from error
    lines = text.split("\n")
    if lines[-1] == "":
        lines.pop()
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            raise DataError(f"{path}, line {number}: expected no empty line, found one")
        yield line


def _count(path: Path, line: str) -> int:
    text = line.strip()
    if not re.fullmatch(r"[0-9]{1,12}", text):
        raise DataError(f"{path}, line 1: expected the number of images, found {line[:60]!r}")
    return int(text)


def _checked_name(path: Path, number: int, name: str) -> str:
    if not _FILE_NAME.fullmatch(name):
        raise DataError(f"{path}, line {number}: expected the name of a jpg or png file, found {name[:60]!r}")
    return name
