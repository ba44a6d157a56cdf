"""The outcome of ``fit``."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from stimulus_moo.training.history import History


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
        skipped: how many of the steps met NaN or infinity and were left out (``on_nonfinite="skip"``).
        picked: the random-clock iterate by parameter name, where ``mu`` was given.
        picked_at: its iteration t.
        alone, shortened, taken_back: how many steps took their batch's own gradient because the guard did not trust the
            recursion, how often it lowered the step size because steps turned the gradient round, and how many steps it
            took back, which shortens the step size too.
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
    skipped: int = 0
    picked: dict[str, Tensor] = field(default_factory=dict)
    picked_at: int | None = None
    alone: int = 0
    shortened: int = 0
    taken_back: int = 0

    def frame(self) -> Any:
        """Return the history as a pandas frame."""
        return self.history.frame()
