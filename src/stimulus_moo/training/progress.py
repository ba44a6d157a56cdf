"""How ``fit`` reports its progress: the record that callbacks receive, and the progress bar."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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
        record: the step's record of the history: step, samples, gradients, passes, seconds, losses, weights, sq_norm,
            anchored, lr, and stationarity if it was evaluated.
        model, multigradient, optimizer: the live objects.
        names: of the losses, where ``losses`` returns a dict; else empty.
    """

    step: int
    record: dict[str, Any]
    model: torch.nn.Module
    multigradient: MultiGradient
    optimizer: Optimizer
    names: tuple[str, ...] = ()


#: Called after every step; returning True ends the run.
Callback = Callable[[Progress], bool | None]


@contextmanager
def progress_bar(title: str, total: int | None, show: bool | None) -> Iterator[Callable[[Progress], None]]:
    """Show a bar with the step and the losses, if ``show`` is True or, by default, if stderr is a terminal.

    Yields:
        A function that moves the bar to a step.
    """
    bar = _make_bar() if show or (show is None and sys.stderr.isatty()) else None
    if bar is None:
        if show:
            raise MissingDependency("progress=True needs rich: pip install 'stimulus-moo[lab]'")
        yield lambda progress: None
        return
    task = bar.add_task(title, total=total, note="")

    def move(progress: Progress) -> None:
        losses, passes = progress.record["losses"], progress.record["passes"]
        named = [f"{name} " for name in progress.names] or [""] * len(losses)
        shown = [f"{name}{loss:.4g}" for name, loss in zip(named, losses, strict=True)]
        values = " ".join(shown[:4]) + (" ..." if len(losses) > 4 else "")
        bar.update(task, completed=progress.step, note=f"losses {values} | {passes} passes")

    with bar:
        yield move


def _make_bar() -> Any:
    """Return a rich progress bar, or None if rich is not installed."""
    try:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
    except ImportError:
        return None
    names, note = TextColumn("{task.description}"), TextColumn("{task.fields[note]}")
    return Progress(names, BarColumn(), MofNCompleteColumn(), note, TimeRemainingColumn(), console=Console(stderr=True))
