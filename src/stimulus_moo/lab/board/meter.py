"""Progress of the board: cells done, and an estimate of the time left."""

from __future__ import annotations

from collections.abc import Sequence
from time import monotonic

from rich.console import Console

from stimulus_moo.lab.board.problem import BoardProblem
from stimulus_moo.lab.board.rivals import SINGLE, Rival
from stimulus_moo.lab.board.store import Cell


class Meter:
    """Prints one line per finished run. Costs are CPU seconds as planned in the table of problems.

    Args:
        console: where to print.
        problems, rivals, quick: the board.
    """

    def __init__(
        self, console: Console, problems: Sequence[BoardProblem], rivals: Sequence[Rival], *, quick: bool
    ) -> None:
        self._console, self._quick = console, quick
        self._rows = {row.name: row for row in problems}
        self._costs = {row.name: planned(row, rivals, quick=quick) for row in problems}
        self._spent = 0.0  # planned cost of what was run
        self._count = 0
        self._start = monotonic()

    def begin(self, name: str) -> None:
        """Begin a problem."""
        self._console.print(f"{self._rows[name].title}: {duration(sum(self._costs.values()))} of CPU time planned")

    def told(self, cell: Cell, new: bool) -> None:
        """Count a cell; print it if it was run now."""
        row = self._rows[cell["problem"]]
        cost = _cost(row, cell["rival"] == SINGLE, cell["passes"])
        self._costs[row.name] = max(self._costs[row.name] - cost, 0.0)
        if not new:
            return
        self._spent, self._count = self._spent + cost, self._count + 1
        left = (monotonic() - self._start) / max(self._spent, 1e-9) * sum(self._costs.values())
        about = [f"task {cell['task']}"] if cell["task"] is not None else []
        about += [f"lr {cell['lr']:g}"] if cell["lr"] is not None else []
        text = ", ".join([f"{row.name}: {cell['rival']}", *about, f"seed {cell['seed']}"])
        self._console.print(f"{self._count}  {text}; about {duration(left)} left", highlight=False)

    def end(self, name: str) -> None:
        """End a problem."""
        self._costs[name] = 0.0


def planned(row: BoardProblem, rivals: Sequence[Rival], *, quick: bool = False) -> float:
    """Return the planned CPU seconds of a problem: learning rates, then all seeds, for passes and for seconds."""
    if quick:
        budget = row.quick
        return len(rivals) * _cost(row, False, budget) + len(row.tasks) * _cost(row, True, budget)
    searches = row.folds or 1
    runs = sum((len(rival.rates) + 0.5) * searches + 1.6 * row.seeds for rival in rivals)
    single = len(row.tasks) * ((len(rivals[0].rates) + 0.5) * searches + row.seeds)
    return runs * _cost(row, False, row.passes) + single * _cost(row, True, row.single or row.passes)


def _cost(row: BoardProblem, single: bool, passes: int) -> float:
    return row.seconds * passes / row.passes * (0.9 if single else 1.0) + 0.3


def duration(seconds: float) -> str:
    """Return a time as text.

    >>> duration(50), duration(400), duration(9000)
    ('50 s', '7 min', '2 h 30 min')
    """
    minutes = round(seconds / 60)
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"
