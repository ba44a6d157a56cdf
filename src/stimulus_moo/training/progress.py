"""The progress bar of ``fit``: rich where it is installed and someone is watching, silent otherwise."""

from __future__ import annotations

import sys
from typing import Any

from stimulus_moo.errors import MissingDependency


class ProgressBar:
    """A context manager that shows the step, losses and stationarity; ``show`` None means: if stderr is a terminal."""

    def __init__(self, title: str, total: int | None, show: bool | None = None) -> None:
        self._bar: Any = None
        self._title = title
        self._total = total
        if show is False or (show is None and not sys.stderr.isatty()):
            return
        try:
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
        except ImportError:
            if show:
                raise MissingDependency("progress=True needs rich: pip install 'stimulus-moo[lab]'") from None
            return
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
        )

    def __enter__(self) -> ProgressBar:
        if self._bar is not None:
            self._bar.start()
            self._task = self._bar.add_task(self._title, total=self._total, note="")
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def show(self, step: int, losses: list[float], gradients: int) -> None:
        """Move the bar to a step."""
        if self._bar is not None:
            values = " ".join(f"{loss:.4g}" for loss in losses[:4]) + (" ..." if len(losses) > 4 else "")
            self._bar.update(self._task, completed=step, note=f"losses {values} | {gradients} gradients")
