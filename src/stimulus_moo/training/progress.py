"""How ``fit`` reports its progress: the record that callbacks receive, and the progress bar."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.optim import Optimizer

from stimulus_moo.errors import MissingDependency
from stimulus_moo.multigradient import MultiGradient


@dataclass(frozen=True)
class Progress:
    """Passed to every callback after every step.

    Attributes:
        step: the number of steps done.
        record: the step's record of the history: step, samples, gradients, losses, weights, sq_norm, anchored, lr, and
            stationarity if it was evaluated.
        model, multigradient, optimizer: the live objects.
    """

    step: int
    record: dict[str, Any]
    model: torch.nn.Module
    multigradient: MultiGradient
    optimizer: Optimizer


#: Called after every step; returning True ends the run.
Callback = Callable[[Progress], bool | None]


class ProgressBar:
    """A context manager that shows the step and the losses; ``show=None`` shows them if stderr is a terminal."""

    def __init__(self, title: str, total: int | None, show: bool | None = None) -> None:
        self._bar: Any = None
        if show is False or (show is None and not sys.stderr.isatty()):
            return
        try:
            from rich import progress
            from rich.console import Console
        except ImportError:
            if show:
                raise MissingDependency("progress=True needs rich: pip install 'stimulus-moo[lab]'") from None
            return
        self._bar = progress.Progress(
            progress.TextColumn("{task.description}"),
            progress.BarColumn(),
            progress.MofNCompleteColumn(),
            progress.TextColumn("{task.fields[note]}"),
            progress.TimeRemainingColumn(),
            console=Console(stderr=True),
        )
        self._task = self._bar.add_task(title, total=total, note="")

    def __enter__(self) -> ProgressBar:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def show(self, step: int, losses: list[float], gradients: int) -> None:
        """Move the bar to a step."""
        if self._bar is not None:
            values = " ".join(f"{loss:.4g}" for loss in losses[:4]) + (" ..." if len(losses) > 4 else "")
            self._bar.update(self._task, completed=step, note=f"losses {values} | {gradients} gradients")
