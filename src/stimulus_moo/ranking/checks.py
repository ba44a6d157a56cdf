"""Checks of labels, query ids, scores and indices. Each returns the checked value or raises with the value found."""

from __future__ import annotations

import numbers
from typing import Any

import numpy as np
import scipy.sparse
from numpy.typing import ArrayLike, NDArray

from stimulus_moo import InvalidOption
from stimulus_moo.options import real
from stimulus_moo.ranking.errors import InvalidRankingData


def is_sparse(matrix: Any) -> bool:
    """Return whether this is a scipy sparse matrix or array."""
    return bool(scipy.sparse.issparse(matrix))


def checked_labels(labels: ArrayLike, rows: int | None = None, name: str = "labels") -> NDArray[np.float64]:
    """Return labels as rows x K floats, at least 0, NaN where missing, or raise InvalidRankingData."""
    try:
        found = np.asarray(labels, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InvalidRankingData(f"{name} must be numbers, found {error}") from error
    if found.ndim == 1:
        found = found[:, None]
    if found.ndim != 2 or found.shape[1] == 0 or (rows is not None and len(found) != rows):
        wanted = "one row per document" if rows is None else f"{rows} rows, one per document"
        raise InvalidRankingData(f"{name} must have {wanted}, and one column per label, found {list(found.shape)}")
    bad = np.isinf(found) | (found < 0)
    if bad.any():
        row, label = np.argwhere(bad)[0]
        raise InvalidRankingData(
            f"{name} must be finite and at least 0 (0: not relevant, NaN: missing), found {found[row, label]} "
            f"for label {label} in row {row}; shift or bin them first"
        )
    return found


def checked_qid(qid: ArrayLike, rows: int | None = None) -> NDArray[Any]:
    """Return query ids as a vector, or raise InvalidRankingData."""
    found = np.asarray(qid)
    if found.ndim != 1 or (rows is not None and len(found) != rows):
        wanted = "a vector of ids" if rows is None else f"one id per row ({rows})"
        raise InvalidRankingData(f"qid must be {wanted}, found shape {list(found.shape)}")
    if len(found) == 0:
        raise InvalidRankingData("qid must hold at least one row, found none")
    if found.dtype.kind == "f" and not np.isfinite(found).all():
        raise InvalidRankingData("qid must not be missing anywhere, found NaN or infinity; drop these rows")
    if found.dtype.kind == "O" and any(value is None or value != value for value in found):
        raise InvalidRankingData("qid must not be missing anywhere, found None or NaN; drop these rows")
    return found


def checked_scores(scores: ArrayLike, rows: int) -> NDArray[np.float64]:
    """Return scores as a vector of finite floats, or raise InvalidRankingData."""
    found = np.asarray(scores, dtype=np.float64)
    if found.shape != (rows,) or not np.isfinite(found).all():
        what = f"shape {list(found.shape)}" if found.shape != (rows,) else "NaN or infinity"
        raise InvalidRankingData(f"y_score must hold one finite number per row ({rows}), found {what}")
    return found


def index(name: str, value: Any) -> int:
    """Return the number of a column or a label, counted from 0, or raise InvalidOption."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < 0:
        raise InvalidOption(f"{name} must be an integer of at least 0, found {value!r}")
    return int(value)


def fraction(name: str, value: Any) -> float:
    """Return a number between 0 and 1, both excluded, or raise InvalidOption."""
    return real(name, value, low=0.0, high=1.0, open_low=True, open_high=True)
