"""Tables as data: results, sample counts, momentum ablation, test metrics; mean ± standard deviation over seeds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from stimulus_moo.lab.report import scores
from stimulus_moo.lab.report.curves import losses_of
from stimulus_moo.lab.report.scores import MEAN, WORST, Score

if TYPE_CHECKING:
    from stimulus_moo.lab.report.groups import Entry, Group

#: Iterations of the paper's ablation table.
ABLATION_STEPS = (100, 200, 300, 500)

#: Maximum number of tasks with one column each.
FEW_TASKS = 8


@dataclass(frozen=True)
class Cell:
    """One cell: its text, its number, whether it is the best of its column, and a remark."""

    text: str
    value: float | None = None
    best: bool = False
    note: str = ""


@dataclass(frozen=True)
class Table:
    """A table: a title, column names, rows of cells, and a remark."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    note: str = ""

    def markdown(self) -> str:
        """Return the table as Markdown, the best cells in bold."""

        def line(texts: Iterable[str]) -> str:
            return "| " + " | ".join(text.replace("|", "\\|").replace("\n", " ") for text in texts) + " |"

        rule = "|---|" + "---:|" * (len(self.columns) - 1)
        rows = [line(f"**{cell.text}**" if cell.best else cell.text for cell in row) for row in self.rows]
        return "\n".join([line(self.columns), rule, *rows])


def comparison_table(group: Group) -> Table:
    """Return the main table of an experiment: losses, loss at equal cost, stationarity, test metrics, cost."""
    budget = scores.equal_budget(group)
    columns: list[tuple[str, Callable[[Entry], Score | None], bool | None]] = []
    if 1 < len(group.tasks) <= 3:
        columns += [(f"Loss, {task}", _loss(s), False) for s, task in enumerate(group.tasks)]
    columns.append(("Loss, mean over tasks" if len(group.tasks) > 1 else "Loss", _loss(MEAN), False))
    if len(group.tasks) > 3:
        columns.append(("Loss, worst task", _loss(WORST), False))
    if budget is not None:
        cost = scores.cost_of(group)
        at = f"Mean loss at {budget:,.0f} {cost}"
        columns.append((at, lambda entry: scores.loss_at(entry, cost, budget), False))
    columns.append(("Stationarity", scores.final_stationarity, False))
    for metric in scores.test_metrics(group):
        columns.append((f"Test {metric}", _test(metric, None), metric in scores.HIGHER_IS_BETTER))
    columns += [(name, _counter(key), None) for name, key in _COUNTERS.items()]
    note = (
        "Losses over the whole training set at the end. Best of each column in bold; cost is not ranked. A small "
        "stationarity with a high loss is a plateau, not a solution."
    )
    return by_entry(group, "Results", columns, note)


def sample_table(group: Group) -> Table:
    """Return the cost of each method: iterations, samples, gradients, their ratio to MGD's, passes and seconds."""
    mgd = next((e for e in group.entries if e.method == "mgd" and not e.diverged), None)
    whole = scores.counter(mgd, "gradients") if mgd else None
    others = {name: key for name, key in _TRUE_COSTS.items() if any(scores.counter(e, key) for e in group.entries)}
    rows = []
    for entry in group.entries:
        spent = scores.counter(entry, "gradients")
        row = [_name(entry), _count(scores.iterations(entry)), _count(scores.counter(entry, "samples")), _count(spent)]
        if whole is not None:
            row.append(Cell(f"{spent.mean / whole.mean:.1%}", spent.mean / whole.mean) if spent else _MISSING)
        rows.append((*row, *(_count(scores.counter(entry, key)) for key in others.values())))
    share = ("Share of MGD",) if whole else ()
    columns = ("Method", "Iterations", "Samples drawn", "Gradient evaluations", *share, *others)
    note = (
        "Samples count each sample drawn once; gradient evaluations count both points of a recursive step. Passes "
        "count derivatives of one scalar: one per task for a multi-gradient, one for a weighted loss."
    )
    return Table("Cost", columns, tuple(rows), note)


def ablation_table(group: Group, steps: Sequence[int] = ABLATION_STEPS) -> Table | None:
    """Return the losses after some iterations by momentum, or None if no method has several momenta."""
    varied = [entry for entry in group.entries if len(_momenta(group, entry.method)) > 1]
    if not varied:
        return None
    tasks = list(enumerate(group.tasks)) if len(group.tasks) <= 2 else [(MEAN, "mean over tasks")]
    columns = [(f"{task}, {step}", s, step) for s, task in tasks for step in steps]
    rows = []
    for entry in varied:
        momentum = entry.runs[0].settings.get("momentum")
        rows.append([_name(entry), Cell(str(momentum)), *(_after(entry, step, s) for _, s, step in columns)])
    for method in dict.fromkeys(entry.method for entry in varied):
        own = [i for i, entry in enumerate(varied) if entry.method == method]
        for c in range(2, 2 + len(columns)):
            _mark([rows[i] for i in own], c, highest=False)
    note = "Loss over the whole training set; ≈ marks a value between two evaluations. Best of each method in bold."
    names = ("Method", "Momentum", *(name for name, _, _ in columns))
    title = "Momentum ablation: losses after " + ", ".join(map(str, steps)) + " iterations"
    return Table(title, names, tuple(map(tuple, rows)), note)


def test_tables(group: Group) -> list[Table]:
    """Return one table per test metric, with one number per method and task. Many tasks become rows."""
    found = []
    for metric in scores.test_metrics(group):
        highest = metric in scores.HIGHER_IS_BETTER
        title, note = f"Test {metric} per task", f"{'Higher' if highest else 'Lower'} is better; best in bold."
        columns = [(task, _test(metric, s), highest) for s, task in enumerate(group.tasks)]
        columns.append(("mean", _test(metric, None), highest))
        table = by_entry(group, title, columns, note)
        found.append(table if len(group.tasks) <= FEW_TASKS else _transposed(table))
    return found


_TRUE_COSTS = {"Passes": "passes", "Seconds": "seconds"}
_COUNTERS = {"Samples": "samples", "Gradients": "gradients", **_TRUE_COSTS}
_MISSING = Cell("—", note="not measured")


def _loss(column: int) -> Callable[[Entry], Score | None]:
    return lambda entry: scores.final_loss(entry, column)


def _test(metric: str, task: int | None) -> Callable[[Entry], Score | None]:
    return lambda entry: scores.test_score(entry, metric, task)


def _counter(key: str) -> Callable[[Entry], Score | None]:
    return lambda entry: scores.counter(entry, key)


def by_entry(
    group: Group, title: str, columns: Sequence[tuple[str, Callable[[Entry], Score | None], bool | None]], note: str
) -> Table:
    """Return a table with one row per entry.

    Args:
        group: the experiment.
        title, note: texts of the table.
        columns: name, function from an entry to its score, and whether higher is better; None for a cost, which is not
            ranked. In the others, the best cell is marked. Columns without any score are left out.
    """
    columns = [column for column in columns if any(column[1](entry) for entry in group.entries)]
    rows = []
    for entry in group.entries:
        row = [_name(entry)]
        for _, score_of, direction in columns:
            score = score_of(entry)
            row.append(_count(score) if direction is None else _cell(score))
        rows.append(row)
    sound = [row for row, entry in zip(rows, group.entries, strict=True) if not entry.diverged]
    for c, (_, _, direction) in enumerate(columns, start=1):
        if direction is not None:
            _mark(sound, c, direction)
    return Table(title, ("Method", *(name for name, _, _ in columns)), tuple(map(tuple, rows)), note)


def _mark(rows: Sequence[list[Cell]], column: int, highest: bool) -> None:
    values = [row[column].value for row in rows]
    known = [value for value in values if value is not None]
    if len(known) < 2:
        return
    best = max(known) if highest else min(known)
    for row, value in zip(rows, values, strict=True):
        if value == best:
            row[column] = replace(row[column], best=True)


def _name(entry: Entry) -> Cell:
    if not entry.diverged:
        return Cell(entry.label)
    return Cell(f"{entry.label} (diverged: {len(entry.diverged)} of {len(entry.runs)})", note="not ranked")


def _cell(score: Score | None) -> Cell:
    if score is None:
        return _MISSING
    spread = f" ± {score.std:.2g}" if len(score.values) > 1 else ""
    return Cell(f"{score.mean:.4g}{spread}", score.mean, note=_seeds(score))


def _count(score: Score | None) -> Cell:
    if score is None:
        return _MISSING
    digits = 0 if score.mean >= 100 or all(value == int(value) for value in score.values) else 1
    spread = f" ± {score.std:,.{digits}f}" if round(score.std, digits) > 0 else ""
    return Cell(f"{score.mean:,.{digits}f}{spread}", score.mean, note=_seeds(score))


def _seeds(score: Score) -> str:
    return "one seed" if len(score.values) == 1 else f"{len(score.values)} seeds"


def _momenta(group: Group, method: str) -> set[Any]:
    return {entry.runs[0].settings.get("momentum") for entry in group.entries if entry.method == method}


def _after(entry: Entry, step: int, column: int) -> Cell:
    score = scores.loss_at(entry, "iterations", step, column)
    if score is None:
        return Cell("diverged" if entry.diverged else "not run", note=f"not evaluated at iteration {step}")
    cell = _cell(score)
    exact = all(step in losses_of(run, "iterations")[0] for run in entry.runs)
    return cell if exact else replace(cell, text=f"≈ {cell.text}")


def _transposed(table: Table) -> Table:
    names = [row[0].text for row in table.rows]
    rows = tuple((Cell(column), *(row[c] for row in table.rows)) for c, column in enumerate(table.columns[1:], start=1))
    return replace(table, columns=("Task", *names), rows=rows)
