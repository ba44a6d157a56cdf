"""Ranking data from LETOR files, LightGBM files and pandas data frames."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_svmlight_file

from stimulus_moo import InvalidOption
from stimulus_moo.options import positive_integer
from stimulus_moo.ranking.checks import checked_labels, checked_qid
from stimulus_moo.ranking.errors import InvalidRankingData
from stimulus_moo.ranking.line_reader import LineReader

_MOST_FEATURES = 1 << 24  # a larger index means a damaged file, and would exhaust the memory
_LONGEST_NUMBER = 19  # digits of an int64


@dataclass(frozen=True)
class RankingData:
    """Documents with labels and query ids.

    Attributes:
        X: rows x features, an array or a CSR matrix.
        Y: rows x K labels.
        qid: the query id of each row.

    >>> import numpy as np
    >>> data = RankingData(np.zeros((3, 2)), np.array([[1.0], [0.0], [2.0]]), np.array([1, 1, 2]))
    >>> X, Y, qid = data
    >>> len(qid)
    3
    """

    X: Any
    Y: NDArray[np.float64]
    qid: NDArray[Any]

    def __iter__(self) -> Any:
        return iter((self.X, self.Y, self.qid))


def load_letor(path: str | PathLike[str], *, n_features: int | None = None, zero_based: bool = False) -> RankingData:
    """Read a LETOR file: SVMlight lines with ``qid:``, as for MSLR-WEB10K/30K, Yahoo and Istella.

    Args:
        path: the file; ``.gz`` and ``.bz2`` are unpacked.
        n_features: number of features; None takes the largest index in the file. Set it for a test file that may lack
            the last features.
        zero_based: whether feature indices start at 0; in LETOR they start at 1. Column 0 of X is the first feature.

    Returns:
        X as a float32 CSR matrix, Y with one column, and qid.

    Raises:
        InvalidRankingData: the file is missing, damaged or in another format.

    >>> import pathlib, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = pathlib.Path(folder, "train.txt")
    ...     _ = file.write_text("2 qid:7 1:0.5 3:1 # a comment\\n0 qid:7 2:0.25\\n")
    ...     data = load_letor(file)
    >>> data.X.toarray().tolist(), data.Y.tolist(), data.qid.tolist()
    ([[0.5, 0.0, 1.0], [0.0, 0.25, 0.0]], [[2.0], [0.0]], [7, 7])
    """
    X, y, qid = _svmlight(Path(path), n_features, zero_based, with_qid=True)
    return RankingData(X, checked_labels(y, name=f"{path}: labels"), qid)


def load_lightgbm(path: str | PathLike[str], *, n_features: int | None = None, zero_based: bool = False) -> RankingData:
    """Read LightGBM's format: SVMlight lines without query ids, and the list lengths in ``<path>.query``.

    Args:
        path: file of the rows; ``<path>.query`` has one list length per line, in the order of the rows.
        n_features, zero_based: as for ``load_letor``.

    Returns:
        X as a float32 CSR matrix, Y with one column, and qid, the line number of the query, counted from 0.

    Raises:
        InvalidRankingData: one of the files is missing or damaged, or the lengths do not add up to the rows.

    >>> import pathlib, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = pathlib.Path(folder, "rank.train")
    ...     _ = file.write_text("1 1:0.5\\n0 2:0.1\\n3 1:0.2\\n")
    ...     _ = file.with_name("rank.train.query").write_text("2\\n1\\n")
    ...     data = load_lightgbm(file)
    >>> data.qid.tolist()
    [0, 0, 1]
    """
    path = Path(path)
    lengths = _lengths(path.with_name(path.name + ".query"))
    X, y, _ = _svmlight(path, n_features, zero_based, with_qid=False)
    total = sum(lengths.tolist())  # Python integers: the sum of damaged lengths may exceed 64 bits
    if total != len(y):
        raise InvalidRankingData(
            f"{path}.query: the list lengths add up to {total}, but {path} has {len(y)} rows; one of the two is "
            "truncated or belongs to another set"
        )
    qid = np.repeat(np.arange(len(lengths)), lengths)
    return RankingData(X, checked_labels(y, name=f"{path}: labels"), qid)


def has_qid(path: str | PathLike[str]) -> bool:
    """Return whether the first line of a file has a query id: LETOR format if so, otherwise LightGBM format.

    Raises:
        InvalidRankingData: the file is missing or cannot be unpacked.

    >>> import pathlib, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = pathlib.Path(folder, "rank.train")
    ...     _ = file.write_text("# two documents\\n1 1:0.5\\n0 2:0.1\\n")
    ...     has_qid(file)
    False
    """
    return b" qid:" in _first_line(Path(path))


def from_frame(frame: Any, *, labels: Sequence[str], qid: str, features: Sequence[str] | None = None) -> RankingData:
    """Split a pandas data frame into features, labels and query ids.

    Args:
        frame: one row per document.
        labels: names of the label columns; NaN is a missing label.
        qid: name of the query id column.
        features: names of the feature columns; None for all others.

    Raises:
        InvalidRankingData: a column is missing, or a feature or label is not a number.

    >>> import pandas
    >>> frame = pandas.DataFrame({"query": ["a", "a"], "clicks": [1, 0], "price": [9.5, 3.0]})
    >>> X, Y, qid = from_frame(frame, labels=["clicks"], qid="query")
    >>> X.tolist(), Y.tolist(), qid.tolist()
    ([[9.5], [3.0]], [[1.0], [0.0]], ['a', 'a'])
    """
    if isinstance(labels, str) or not len(labels):
        raise InvalidOption(f"labels must be a list of at least one column name, found {labels!r}")
    chosen = [name for name in frame.columns if name not in {*labels, qid}] if features is None else list(features)
    for name in (*labels, qid, *chosen):
        if name not in frame.columns:
            raise InvalidRankingData(f"the frame has no column {name!r}; it has {', '.join(map(repr, frame.columns))}")
    if not chosen:
        raise InvalidRankingData("the frame has no feature column besides labels and qid")
    try:
        X = frame[chosen].to_numpy(dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InvalidRankingData(f"the features must be numbers, found {error}; name the numeric ones") from error
    Y = checked_labels(frame[list(labels)].to_numpy(), name=f"labels {list(labels)}")
    return RankingData(X, Y, checked_qid(frame[qid].to_numpy()))


def _svmlight(path: Path, n_features: int | None, zero_based: bool, *, with_qid: bool) -> tuple[Any, Any, Any]:
    wanted = "a LETOR file: lines 'label qid:id index:value ...'" if with_qid else "lines 'label index:value ...'"
    if n_features is not None:
        positive_integer("n_features", n_features)
    first = _first_line(path)
    if with_qid and first and b" qid:" not in first:
        raise InvalidRankingData(
            f"{path}: expected {wanted}, found {first[:60]!r}; for LightGBM's two files use load_lightgbm"
        )
    try:
        with LineReader(path) as lines:
            found: Any = load_svmlight_file(
                lines, n_features=n_features, dtype=np.float32, zero_based=zero_based, query_id=with_qid
            )
    except InvalidRankingData:
        raise
    except (ValueError, OverflowError, OSError, EOFError, MemoryError, zlib.error) as error:
        raise InvalidRankingData(
            f"{path}: expected {wanted}, found: {error}; indices start at {0 if zero_based else 1} (zero_based="
            f"{zero_based})"
        ) from error
    X, y, qid = found if with_qid else (*found, None)
    if X.shape[0] == 0:
        raise InvalidRankingData(f"{path}: expected {wanted}, found no row")
    if with_qid and len(qid) != X.shape[0]:
        raise InvalidRankingData(f"{path}: expected {wanted}, found a qid in {len(qid)} of {X.shape[0]} lines")
    if X.shape[1] > _MOST_FEATURES:
        raise InvalidRankingData(f"{path}: expected feature indices up to {_MOST_FEATURES:,}, found {X.shape[1]:,}")
    for name, values in (("values", X.data), ("labels", y)):
        if not np.isfinite(values).all():
            raise InvalidRankingData(f"{path}: expected finite {name}, found NaN or infinity")
    return X, y, qid


def _first_line(path: Path) -> bytes:
    """Return the first line that is neither empty nor a comment, or an empty one."""
    try:
        with LineReader(path) as lines:
            return next((line for line in lines if line.strip() and not line.lstrip().startswith(b"#")), b"")
    except (OSError, EOFError, zlib.error) as error:
        raise InvalidRankingData(f"{path}: expected a file of lines, found: {error}") from error


def _lengths(path: Path) -> NDArray[np.int64]:
    if not path.is_file():
        raise InvalidRankingData(f"{path}: expected one list length per line, found no such file")
    try:
        words = path.read_bytes().split()
        if long := [word for word in words if len(word) > _LONGEST_NUMBER]:
            raise ValueError(f"a word of {len(long[0]):,} bytes")
        lengths = np.array([int(word) for word in words], dtype=np.int64)
    except (ValueError, OverflowError) as error:
        raise InvalidRankingData(f"{path}: expected one list length per line, found: {error}") from error
    if not len(lengths) or lengths.min() < 0:
        found = f"{lengths.min()}" if len(lengths) else "none"
        raise InvalidRankingData(f"{path}: expected one list length per line, all at least 0, found {found}")
    return lengths
