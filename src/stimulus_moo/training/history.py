"""What a training run leaves behind: its history, counters, stationarity and the picked iterate."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from stimulus_moo.errors import MissingDependency, StateMismatch


class History:
    """One record per step: step, samples, gradients, losses, weights, sq_norm, anchored, and lr as it was taken.

    Where the model was evaluated after the step, the record also has ``stationarity`` and ``full_losses``, the losses
    over the evaluation data; where the step was skipped (``on_nonfinite="skip"``) it has ``skipped`` and its losses,
    weights and sq_norm are NaN. Iterating gives the records as dicts; ``frame()`` gives a pandas frame. Records are
    kept as columns of numbers, 73 bytes a step for two objectives.

    >>> history = History()
    >>> history.add(step=0, samples=8, gradients=8, losses=[0.5, 0.7], weights=[0.4, 0.6], sq_norm=0.1, anchored=False)
    >>> list(history)[0]["losses"], len(history)
    ([0.5, 0.7], 1)
    """

    _COUNTS = ("step", "samples", "gradients", "anchored")

    def __init__(self) -> None:
        self._size = 0
        self._room = 64  # records there will be room for
        self._columns: dict[str, NDArray[Any]] = {}
        self._evaluations: dict[int, tuple[float, list[float]]] = {}  # by position
        self._skipped: set[int] = set()  # positions

    def reserve(self, records: int) -> None:
        """Take the memory for so many records at once, so that a long run does not grow; at most for 2^17 of them."""
        self._room = max(self._room, min(records, 1 << 17))

    def add(self, **record: Any) -> None:
        """Append a record."""
        if not self._columns:
            self._columns = {key: _column(value, self._room) for key, value in record.items()}
        for key, value in record.items():
            column = self._columns[key]
            if self._size == len(column):
                column = self._columns[key] = np.concatenate([column, np.zeros_like(column)])
            column[self._size] = value
        self._size += 1

    def last(self) -> dict[str, Any]:
        """Return the last record."""
        if not self._size:
            raise IndexError("the history is empty")
        return self._record(self._size - 1)

    def evaluated(self, stationarity: float, full_losses: list[float]) -> None:
        """Add an evaluation to the last record."""
        self._evaluations[self._size - 1] = stationarity, full_losses

    def skip(self) -> None:
        """Mark the last record as that of a skipped step."""
        self._skipped.add(self._size - 1)

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return map(self._record, range(self._size))

    def __getitem__(self, column: str) -> list[Any]:
        """Return one column as a list; NaN where a record has no such entry."""
        if not isinstance(column, str):
            raise TypeError(
                f"a history is indexed by the name of a column, found {column!r}; list(history) has the records"
            )
        if column in self._columns:
            found: list[Any] = self._columns[column][: self._size].tolist()
            return found
        return [row.get(column, math.nan) for row in self]

    def _record(self, i: int) -> dict[str, Any]:
        record = {key: column[i].tolist() for key, column in self._columns.items()}
        if i in self._skipped:
            record["skipped"] = True
        if i in self._evaluations:
            stationarity, full_losses = self._evaluations[i]
            record.update(stationarity=stationarity, full_losses=list(full_losses))
        return record

    def frame(self) -> Any:
        """Return a pandas frame: losses and weights as ``loss_0``, ``weight_0``, ...; NaN where nothing was evaluated.

        Raises:
            MissingDependency: pandas is not installed.
        """
        try:
            import pandas
        except ImportError:
            raise MissingDependency("History.frame() needs pandas: pip install 'stimulus-moo[lab]'") from None
        flat = [
            {
                **{key: row.get(key, math.nan) for key in (*self._COUNTS, "sq_norm", "lr", "stationarity")},
                **{f"loss_{s}": value for s, value in enumerate(row["losses"])},
                **{f"weight_{s}": value for s, value in enumerate(row["weights"])},
                **{f"full_loss_{s}": value for s, value in enumerate(row.get("full_losses", ()))},
            }
            for row in self
        ]
        return pandas.DataFrame(flat)

    def state_dict(self) -> dict[str, Any]:
        """Return the columns as tensors; they share the history's memory, so save or copy them before the next step."""
        evaluations = [[stationarity, *losses] for stationarity, losses in self._evaluations.values()]
        return {
            "columns": {key: torch.from_numpy(column[: self._size]) for key, column in self._columns.items()},
            "evaluated_at": torch.tensor(list(self._evaluations), dtype=torch.int64),
            "evaluations": torch.tensor(evaluations, dtype=torch.float64),
            "skipped_at": torch.tensor(sorted(self._skipped), dtype=torch.int64),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over saved columns.

        Raises:
            StateMismatch: they are not all there, or not of one length; nothing has changed then.
        """
        names = ("columns", "evaluated_at", "evaluations", "skipped_at")
        parts: list[Any] = [state.get(name) for name in names]
        columns, at, evaluations, skipped = parts
        if not (
            isinstance(columns, dict)
            and all(isinstance(t, Tensor) and t.dim() for t in (at, evaluations, skipped, *columns.values()))
            and len({len(column) for column in columns.values()}) <= 1
            and len(at) == len(evaluations)
        ):
            raise StateMismatch(
                "the state of History must hold columns of one length, evaluated_at, evaluations and skipped_at, found "
                f"{sorted(map(str, state))}"
            )
        loaded = History()
        loaded.reserve(self._room)
        for values in zip(*(column.tolist() for column in columns.values()), strict=True):
            loaded.add(**dict(zip(columns, values, strict=True)))
        for i, (stationarity, *full_losses) in zip(at.tolist(), evaluations.tolist(), strict=True):
            loaded._evaluations[i] = stationarity, full_losses
        loaded._skipped = set(skipped.tolist())
        self.__dict__.update(loaded.__dict__)


def _column(value: Any, room: int) -> NDArray[Any]:
    """Return a column for values of this kind: numbers, or lists of so many."""
    kind = type(value) if isinstance(value, bool | int) else float
    column = np.empty((room, len(value)) if isinstance(value, list) else room, dtype=kind)
    column.fill(0)  # the system gives the memory now, not page by page as the run goes on
    return column
