"""Progress display of runs: bars with loss and remaining time on a terminal, otherwise one line per run."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import TimeRemainingColumn as TimeLeft

#: Counters of unusual steps in a summary.
EVENTS = ("skipped", "alone", "shortened", "taken_back")


class Watch:
    """Context manager that displays progress on a console.

    Args:
        console: the console; bars are shown only on a terminal.
        title: title of the overall bar.
        total: number of runs; None if unknown.
    """

    def __init__(self, console: Console, title: str, total: int | None) -> None:
        self._console = console
        self._total = total
        self._title = title
        self._bars: Progress | None = None
        self._all: TaskID | None = None
        self._one: TaskID | None = None

    def __enter__(self) -> Watch:
        if self._console.is_terminal:
            self._bars = Progress(
                TextColumn("{task.description}"),
                BarColumn(bar_width=24),
                MofNCompleteColumn(),
                TextColumn("{task.fields[note]}"),
                TimeElapsedColumn(),
                TextColumn("left"),
                TimeLeft(),
                console=self._console,
                transient=True,
            )
            self._bars.start()
            if self._total != 1:
                self._all = self._bars.add_task(self._title, total=self._total, note="runs")
        return self

    def __exit__(self, *_: object) -> None:
        if self._bars is not None:
            self._bars.stop()

    def begin(self, title: str, total: float | None) -> None:
        """Add a bar for a run; ``total`` is its limit: a number of steps, gradients, passes or seconds."""
        if self._bars is not None:
            self._one = self._bars.add_task(title, total=total, note="")

    def show(self, done: float, losses: list[float]) -> None:
        """Update the bar of the run."""
        if self._bars is not None and self._one is not None:
            self._bars.update(self._one, completed=done, note=f"loss {_some(losses)}")

    def finished(self, summary: dict[str, Any]) -> None:
        """Print one line with the result of a run."""
        self.end(run_line(summary))

    def skipped(self, name: str) -> None:
        """Print that a run was already complete."""
        self.end(f"{name}: complete already")

    def end(self, line: str) -> None:
        """Remove the bar of the run, advance the overall bar, and print a line."""
        if self._bars is not None:
            if self._one is not None:
                self._bars.remove_task(self._one)
                self._one = None
            if self._all is not None:
                self._bars.advance(self._all)
        self.say(line)

    def say(self, line: str) -> None:
        """Print a line above the bars."""
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)


def run_line(summary: dict[str, Any]) -> str:
    """Return the result of a run in one line."""
    name = f"{summary['experiment']}, {summary['method']}, seed {summary['seed']}"
    if summary["diverged"]:
        return f"{name}: diverged after {summary['steps']} steps: {summary['error']}"
    noted = [f"{summary[key]:,} {key.replace('_', ' ')}" for key in EVENTS if summary.get(key)]
    events = f" ({', '.join(noted)})" if noted else ""
    return (
        f"{name}: {summary['steps']:,} steps{events}, {summary['samples']:,} samples, "
        f"{summary['gradients']:,} gradients, {summary['passes']:,} passes, "
        f"training losses {_some(summary['full_losses'] or [])}, "
        f"stationarity {_number(summary['stationarity'])}, {summary['seconds']:.1f} s"
    )


def _some(losses: list[float]) -> str:
    return (" ".join(map(_number, losses[:4])) or "-") + (f" and {len(losses) - 4} more" if len(losses) > 4 else "")


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"
