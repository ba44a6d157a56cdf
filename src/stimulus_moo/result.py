"""What a training run leaves behind: its history, counters, stationarity and the picked iterate."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from stimulus_moo.errors import MissingDependency, StateMismatch


class History:
    """One record per step: step, samples, gradients, losses, weights, sq_norm, anchored.

    Where the model was evaluated after the step, the record also has ``stationarity`` and ``full_losses``, the losses
    over the evaluation data. Iterating gives the records as dicts; ``frame()`` gives a pandas frame.

    >>> history = History()
    >>> history.add(step=0, samples=8, gradients=8, losses=[0.5, 0.7], weights=[0.4, 0.6], sq_norm=0.1, anchored=False)
    >>> list(history)[0]["losses"], len(history)
    ([0.5, 0.7], 1)
    """

    _COUNTS = ("step", "samples", "gradients", "anchored")

    def __init__(self) -> None:
        self._rows: list[dict[str, Any]] = []

    def add(self, **record: Any) -> None:
        """Append a record."""
        self._rows.append(record)

    def last(self) -> dict[str, Any]:
        """Return the last record."""
        return dict(self._rows[-1])

    def evaluated(self, stationarity: float, full_losses: list[float]) -> None:
        """Add an evaluation to the last record."""
        self._rows[-1].update(stationarity=stationarity, full_losses=full_losses)

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(dict(row) for row in self._rows)

    def __getitem__(self, column: str) -> list[Any]:
        """Return one column as a list."""
        return [row.get(column, math.nan) for row in self._rows]

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
                **{key: row.get(key, math.nan) for key in (*self._COUNTS, "sq_norm", "stationarity")},
                **{f"loss_{s}": value for s, value in enumerate(row["losses"])},
                **{f"weight_{s}": value for s, value in enumerate(row["weights"])},
                **{f"full_loss_{s}": value for s, value in enumerate(row.get("full_losses", ()))},
            }
            for row in self._rows
        ]
        return pandas.DataFrame(flat)

    def state_dict(self) -> dict[str, Any]:
        """Return the columns as tensors, which stay small on disk however long the run."""
        seen = [(i, row) for i, row in enumerate(self._rows) if "stationarity" in row]
        return {
            "counts": torch.tensor([[int(row[key]) for key in self._COUNTS] for row in self._rows], dtype=torch.int64),
            "sq_norm": torch.tensor(self["sq_norm"], dtype=torch.float64),
            "losses": torch.tensor(self["losses"], dtype=torch.float64),
            "weights": torch.tensor(self["weights"], dtype=torch.float64),
            "evaluated_at": torch.tensor([i for i, _ in seen], dtype=torch.int64),
            "evaluations": torch.tensor([[r["stationarity"], *r["full_losses"]] for _, r in seen], dtype=torch.float64),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over saved columns.

        Raises:
            StateMismatch: they are not all there, or not of one length; nothing has changed then.
        """
        names = ("counts", "sq_norm", "losses", "weights", "evaluated_at", "evaluations")
        columns: list[Any] = [state.get(name) for name in names]
        if not all(isinstance(column, Tensor) for column in columns) or len({len(c) for c in columns[:4]}) != 1:
            raise StateMismatch(f"the state of History must hold the tensors {', '.join(names)}, of matching length")
        rows = []
        for counts, sq_norm, losses, weights in zip(*(column.tolist() for column in columns[:4]), strict=True):
            row = dict(zip(self._COUNTS, counts, strict=True), losses=losses, weights=weights, sq_norm=sq_norm)
            row["anchored"] = bool(row["anchored"])
            rows.append(row)
        for i, (stationarity, *full_losses) in zip(columns[4].tolist(), columns[5].tolist(), strict=True):
            rows[i].update(stationarity=stationarity, full_losses=full_losses)
        self._rows = rows


@dataclass
class Result:
    """The outcome of ``fit``.

    Attributes:
        model: the trained model, at the last iterate.
        method: the method's name.
        history: one record per step.
        steps, samples, gradients: counters over the whole run, resumed parts included.
        losses: the S mean losses over the evaluation data at the end; empty if nothing was evaluated.
        stationarity: the Pareto stationarity there, or NaN.
        stopped: why the run ended: ``"steps"``, ``"gradients"``, ``"tolerance"`` or ``"callback"``.
        picked: the random-clock iterate by parameter name, where ``mu`` was given.
        picked_at: its iteration t.
        shortened, taken_back: how many steps the guard shortened and took back.
    """

    model: torch.nn.Module
    method: str
    history: History
    steps: int
    samples: int
    gradients: int
    losses: list[float]
    stationarity: float
    stopped: str
    picked: dict[str, Tensor] = field(default_factory=dict)
    picked_at: int | None = None
    shortened: int = 0
    taken_back: int = 0

    def frame(self) -> Any:
        """Return the history as a pandas frame."""
        return self.history.frame()
