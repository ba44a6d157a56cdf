"""``docs/scoreboard.md``, written from the figures of the board."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from stimulus_moo.lab.board.board import PASSES, SECONDS
from stimulus_moo.lab.board.rivals import AUTO, MEAN, RIVALS

_TITLES = {PASSES: "equal passes", SECONDS: "equal CPU seconds"}
_INTRODUCTION = """\
# Scoreboard

<!-- written by `stimulus-moo board`; do not edit -->

Which method for a problem like yours? Every method below trains the same model, on the same data in the same order,
with the same budget. All figures are on held-out test data, means over the seeds. Repeat it with `make board`
(`stimulus-moo board --quick` takes ten minutes).

- **Delta m** is the mean change of the test metrics against single-task models, in percent: **lower is better**, and
  below 0 is better than one model per task. For DEO, whose best value is 0, it is percentage points. ± is the standard
  deviation over the seeds. **Worst** is the change of the task that lost most. **Rank** is the mean rank over the
  metrics. **p** is the exact sign-flip test of Delta m against `auto`, paired by seed (5 seeds: at least 0.0625).
- **Hypervolume** is that of the test losses of a single model, at the reference point (2, 2).
- **Equal passes**: a pass is the derivative of one scalar for one sample; the gradients of all S losses take S.
  **Spent** is the passes used, divided by the budget: a last pass over all data may exceed it. STIMULUS-M, which
  begins with such a pass, is left out where two of them exceed the budget. **Equal seconds**: the
  CPU seconds that Adam on the mean takes for its passes, on one thread; each method has the passes that it makes in
  this time, by the speed of its own runs. Budgets that differ by less than 10% are taken as equal.
- Every method but `auto` has the learning rate with the lowest Delta m on *validation* data, of three rates, and a
  fourth if the best is at an end. Learning rates fall linearly to zero over the last half. SMGD, MoCo and STIMULUS step
  by SGD or heavy ball, as they are defined; all others by Adam. Single-task models are tuned in the same way, and each
  has the whole budget. There is no early stopping. Fixed weights, uncertainty weighting, DWA and FAMO run in a
  plain PyTorch loop.
"""


def markdown(board: Mapping[str, Any]) -> str:
    """Return the page in Markdown."""
    parts = [_INTRODUCTION, _origin(board)]
    for kind in (SECONDS, PASSES):
        if board["overall"][kind]:
            parts.append(f"## All problems, {_TITLES[kind]}\n")
            parts += [] if board["quick"] else [_verdict(board["overall"][kind])]
            parts.append(_overall(board, kind))
    if board["overall"][SECONDS]:
        parts += [f"## Problem by problem, {_TITLES[SECONDS]}\n", table(LINE, problem_lines(board))]
    for problem in board["problems"]:
        parts += [f"## {problem['title']}\n", _about(problem)]
        for kind in (SECONDS, PASSES):
            if kind in problem["tables"]:
                parts += [f"### {problem['title']}, {_TITLES[kind]}\n", _table(problem, kind)]
        if problem["published"]:
            parts.append(_published(problem))
    parts += ["## The methods\n", _methods(board)]
    return "\n".join(parts)


#: the columns of ``problem_lines``
LINE = ("problem", "Delta m %, auto", "Adam, mean", "best", "worst task %, auto", "Adam, mean ")


def problem_lines(board: Mapping[str, Any]) -> list[list[str]]:
    """Return one line per problem, at equal seconds: auto, Adam on the mean, the best method, and the worst task."""
    lines = []
    for problem in board["problems"]:
        ranked = problem["tables"][SECONDS]
        by_name = {row["rival"]: row for row in ranked}
        auto, mean = by_name[AUTO], by_name[MEAN]
        best = min((row for row in ranked if row["delta_m"] is not None), key=lambda row: row["delta_m"])
        changes = number(auto["delta_m"], 2), number(mean["delta_m"], 2)
        leader = f"{number(best['delta_m'], 2)} ({best['rival']})"
        lines.append([problem["title"], *changes, leader, number(auto["worst"], 2), number(mean["worst"], 2)])
    return lines


def _origin(board: Mapping[str, Any]) -> str:
    quick = "**A quick run with tiny budgets: its figures mean nothing.** " if board["quick"] else ""
    missing = f" Left out: {'; '.join(board['missing'])}." if board["missing"] else ""
    others = f" **Not run: {', '.join(board['others'])}.**" if board["others"] else ""
    return (
        f"{quick}Made by `{board['command']}`, {board['date']}, commit {board['commit']}, "
        f"{', '.join(f'{name} {number}' for name, number in board['versions'].items())}.{missing}{others}\n"
    )


def _verdict(rows: Sequence[Mapping[str, Any]]) -> str:
    best, own = rows[0], next(row for row in rows if row["rival"] == AUTO)
    if best["rival"] == AUTO:
        return f"`auto` has the best mean rank, {own['rank']:.2f}.\n"
    return f"`{best['rival']}` has the best mean rank, {best['rank']:.2f}; that of `auto` is {own['rank']:.2f}.\n"


def _overall(board: Mapping[str, Any], kind: str) -> str:
    columns = ["method", "mean rank", "Delta m %", "better than auto on", "p against auto"]
    rows = [
        [
            row["rival"],
            f"{row['rank']:.2f}",
            number(row["delta_m"], 2),
            f"{row['better']} of {row['problems']}",
            number(row["p"], 3),
        ]
        for row in board["overall"][kind]
    ]
    return table(columns, rows)


def _about(problem: Mapping[str, Any]) -> str:
    limits = f"{problem['limits'][PASSES]:,} passes, {problem['limits'][SECONDS]:.1f} CPU seconds"
    values = ", ".join(
        f"{name} {number(value, 4)}" for name, value in zip(problem["metrics"], problem["baseline"], strict=True)
    )
    return (
        f"{problem['setting'][0].upper()}{problem['setting'][1:]}. Batches of {problem['batch']}, seeds: "
        f"{problem['seeds']}, budget {limits} on {' and '.join(problem['machines'])}. "
        f"Single-task models ({problem['baseline_seconds']:.1f} CPU seconds for all): {values}.\n"
    )


def _table(problem: Mapping[str, Any], kind: str) -> str:
    few = len(problem["metrics"]) <= 4
    volume = any(row["hypervolume"] is not None for row in problem["tables"][kind])
    columns = ["method", "Delta m %", "worst %", "rank", *(problem["metrics"] if few else ["mean metric"])]
    columns += [*(["hypervolume"] if volume else []), "p", "CPU seconds", "spent", "learning rate"]
    rows = []
    for row in sorted(problem["tables"][kind], key=lambda row: _last(row["delta_m"])):
        spread = "" if row["spread"] is None else f" ± {row['spread']:.2f}"
        known = [value for value in row["metrics"] if value is not None]
        mean = sum(known) / len(known) if known else None
        rows.append(
            [
                row["rival"],
                f"{number(row['delta_m'], 2)}{spread}",
                number(row["worst"], 2),
                f"{row['rank']:.1f}",
                *([number(value, 4) for value in row["metrics"]] if few else [number(mean, 4)]),
                *([number(row["hypervolume"], 3)] if volume else []),
                number(row["p"], 3) if row["p"] is not None else "",
                f"{row['seconds']:.1f}",
                f"{row['spent']:.2f}",
                row["lr"],
            ]
        )
    return table(columns, rows)


def _published(problem: Mapping[str, Any]) -> str:
    rows = [[one["what"], one["value"], one["source"]] for one in problem["published"]]
    return "Others' runs, with other splits, models and budgets:\n\n" + table(["figure", "value", "source"], rows)


def _methods(board: Mapping[str, Any]) -> str:
    names = [row["rival"] for row in board["overall"][PASSES]]
    return table(["method", "what it is"], [[name, RIVALS[name].source] for name in RIVALS if name in names])


def _last(value: float | None) -> float:
    return float("inf") if value is None else value


def number(value: float | None, digits: int) -> str:
    """Return a number as text, without the sign of a rounded zero; a run that diverged has none.

    >>> number(-0.004, 2), number(-0.006, 2), number(None, 2)
    ('0.00', '-0.01', '-')
    """
    return "-" if value is None else f"{value:z.{digits}f}"


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"
