"""The outcome of ``fit``: its result, and the history with one record per step."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from stimulus_moo.errors import MissingDependency, StateMismatch

#: Type and dimension of the columns that ``fit`` records.
_KINDS = {
    **dict.fromkeys(("step", "samples", "gradients", "passes"), (torch.int64, 1)),
    **dict.fromkeys(("losses", "weights"), (torch.float64, 2)),
    **dict.fromkeys(("seconds", "sq_norm", "lr"), (torch.float64, 1)),
    "anchored": (torch.bool, 1),
}


class History:
    """One record per step: step, samples, gradients, passes, seconds, losses, weights, sq_norm, anchored and lr.

    Samples, gradients, passes and seconds are totals since the start of the run, and lr is the one that was used.
    If the model was evaluated after the step, the record also has ``stationarity`` and ``full_losses``, the losses over
    the evaluation data. The record of a skipped step (``on_nonfinite="skip"``) has ``skipped``, and its losses, weights
    and sq_norm are NaN. Iterating gives the records as dicts. For two objectives a record takes 89 bytes.

    >>> history = History()
    >>> history.add(step=0, samples=8, gradients=8, losses=[0.5, 0.7], weights=[0.4, 0.6], sq_norm=0.1, anchored=False)
    >>> list(history)[0]["losses"], len(history)
    ([0.5, 0.7], 1)
    """

    def __init__(self) -> None:
        self._size = 0
        self._room = 64  # initial capacity in records
        self._columns: dict[str, NDArray[Any]] = {}
        self._evaluations: dict[int, tuple[float, list[float]]] = {}  # by position
        self._skipped: set[int] = set()  # positions
        self.names: tuple[str, ...] = ()  # of the losses, where ``losses`` returns a dict

    def reserve(self, records: int) -> None:
        """Set the initial capacity, so that the memory of a long run does not grow; at most 2^17 records."""
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

    @property
    def objectives(self) -> int:
        """The number of losses; 0 before the first record."""
        return int(self._columns["losses"].shape[1]) if self._size else 0

    def last(self) -> dict[str, Any]:
        """Return the last record."""
        if not self._size:
            raise IndexError("the history is empty")
        return self._record(self._size - 1)

    def evaluated(self, stationarity: float, full_losses: list[float]) -> None:
        """Add an evaluation to the last record."""
        self._evaluations[self._size - 1] = stationarity, full_losses

    def skip(self) -> None:
        """Mark the last step as skipped."""
        self._skipped.add(self._size - 1)

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return map(self._record, range(self._size))

    def __getitem__(self, column: str) -> list[Any]:
        """Return a column as a list, with NaN for records without this entry."""
        if not isinstance(column, str):
            raise TypeError(f"a history is indexed by column name, found {column!r}; list(history) gives the records")
        if column in self._columns:
            return list(self._columns[column][: self._size].tolist())
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
        """Return a pandas frame; NaN where nothing was evaluated.

        Columns of losses have their names, as in ``loss_click`` and ``weight_click``, or numbers, as in ``loss_0``.

        Raises:
            MissingDependency: pandas is not installed.
        """
        try:
            import pandas
        except ImportError:
            raise MissingDependency("History.frame() needs pandas: pip install 'stimulus-moo[lab]'") from None
        names = ("step", "samples", "gradients", "passes", "seconds", "anchored", "sq_norm", "lr", "stationarity")
        flat = [
            {
                **{name: row.get(name, math.nan) for name in names},
                **by_name("loss_", row["losses"], self.names),
                **by_name("weight_", row["weights"], self.names),
                **by_name("full_loss_", row.get("full_losses", ()), self.names),
            }
            for row in self
        ]
        return pandas.DataFrame(flat)

    def state_dict(self) -> dict[str, Any]:
        """Return the columns as tensors that share the history's memory: save or copy them before the next step."""
        evaluations = [[stationarity, *losses] for stationarity, losses in self._evaluations.values()]
        return {
            "columns": {key: torch.from_numpy(column[: self._size]) for key, column in self._columns.items()},
            "evaluated_at": torch.tensor(list(self._evaluations), dtype=torch.int64),
            "evaluations": torch.tensor(evaluations, dtype=torch.float64),
            "skipped_at": torch.tensor(sorted(self._skipped), dtype=torch.int64),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load saved columns.

        Raises:
            StateMismatch: an entry is missing, or the lengths differ; nothing has changed then.
        """
        parts: list[Any] = [state.get(name) for name in ("columns", "evaluated_at", "evaluations", "skipped_at")]
        columns, at, evaluations, skipped = parts
        if not isinstance(columns, dict) or not _fit_together(columns, at, evaluations, skipped):
            raise StateMismatch(
                "the state of History must have columns of one length and of the types in which they are saved, "
                f"evaluated_at, evaluations and skipped_at, found {sorted(map(str, state))}"
            )
        loaded = History()
        loaded.reserve(self._room)
        for values in zip(*(column.tolist() for column in columns.values()), strict=True):
            loaded.add(**dict(zip(columns, values, strict=True)))
        for i, (stationarity, *full_losses) in zip(at.tolist(), evaluations.tolist(), strict=True):
            loaded._evaluations[i] = stationarity, full_losses
        loaded._skipped = set(skipped.tolist())
        loaded.names = self.names  # those of the losses, which are not part of a state
        self.__dict__.update(loaded.__dict__)


def by_name(prefix: str, values: Sequence[float], names: Sequence[str]) -> dict[str, float]:
    """Return values by prefix and name, or by prefix and number where there are no names.

    >>> by_name("loss/", [0.5, 0.7], ["click", "buy"]), by_name("loss/", [0.5], [])
    ({'loss/click': 0.5, 'loss/buy': 0.7}, {'loss/0': 0.5})
    """
    return {f"{prefix}{names[s] if names else s}": value for s, value in enumerate(values)}


def _fit_together(columns: dict[str, Any], at: Any, evaluations: Any, skipped: Any) -> bool:
    """Return whether saved columns, evaluations and marks have the right types and belong together."""
    if not all(isinstance(t, Tensor) and t.dim() for t in (at, evaluations, skipped, *columns.values())):
        return False
    sizes = {len(column) for column in columns.values()} or {0}
    kinds = {name: (column.dtype, column.dim()) for name, column in columns.items() if name in _KINDS}
    widths = {column.shape[1] for name, column in columns.items() if name in ("losses", "weights") and column.dim() > 1}
    marks = torch.cat([at, skipped]) if (at.dtype, skipped.dtype) == (torch.int64, torch.int64) else None
    return (
        len(sizes) == 1
        and all(kind == _KINDS[name] for name, kind in kinds.items())
        and len(widths) <= 1
        and not any((column < 0).any() for column in columns.values() if column.dtype == torch.int64)
        and (marks is not None and marks.dim() == 1 and not ((marks < 0) | (marks >= min(sizes))).any())
        and evaluations.dtype == torch.float64
        and evaluations.dim() == (2 if len(at) else 1)
        and len(at) == len(evaluations)
        and (not len(at) or not widths or evaluations.shape[1] == 1 + min(widths))
    )


def _column(value: Any, room: int) -> NDArray[Any]:
    """Return a column with the type of a value: a number, or a list of numbers."""
    kind = type(value) if isinstance(value, bool | int) else float
    column = np.empty((room, len(value)) if isinstance(value, list) else room, dtype=kind)
    column.fill(0)  # allocates the memory now, not page by page during the run
    return column


@dataclass
class Result:
    """The outcome of ``fit``.

    Attributes:
        model: the trained model, at the last iterate.
        method: the method's name.
        history: one record per step.
        steps, samples, gradients, passes: counters over the whole run, including the parts before a resume.
        seconds: wall-clock time of all steps, including those before a resume, without evaluations and callbacks.
        losses: the S mean losses over the evaluation data at the end; empty if nothing was evaluated.
        stationarity: the Pareto stationarity there, or NaN.
        stopped: why the run ended: ``"steps"``, ``"gradients"``, ``"passes"``, ``"seconds"``, ``"tolerance"`` or
            ``"callback"``.
        skipped: number of steps skipped because of NaN or infinity (``on_nonfinite="skip"``).
        picked, picked_at: the random-clock iterate by parameter name, and its iteration t, if ``mu`` was given.
        bounds: the bounds of ``fit`` as numbers, by objective.
        missed: for the bounds that were missed by more than 0.1%, how far the loss is above; empty if all were met.
        alone, shortened, taken_back: how often the guard acted, as for ``Safeguard``; 0 without it.
    """

    model: torch.nn.Module
    method: str
    history: History
    steps: int
    samples: int
    gradients: int
    passes: int
    seconds: float
    losses: list[float]
    stationarity: float
    stopped: str
    skipped: int = 0
    picked: dict[str, Tensor] = field(default_factory=dict)
    picked_at: int | None = None
    bounds: dict[int, float] = field(default_factory=dict)
    missed: dict[int, float] = field(default_factory=dict)
    alone: int = 0
    shortened: int = 0
    taken_back: int = 0

    @property
    def named_losses(self) -> dict[str, float]:
        """The losses by name, or by number where they have no names."""
        return by_name("", self.losses, self.history.names)

    def frame(self) -> Any:
        """Return the history as a pandas frame."""
        return self.history.frame()
