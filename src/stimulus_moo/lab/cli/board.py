"""``stimulus-moo board``: the scoreboard of all methods on real problems, at equal budgets."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from stimulus_moo.lab.cli.arguments import RUNS, Data
from stimulus_moo.lab.cli.console import stderr, stdout
from stimulus_moo.lab.cli.error_handling import handle_errors
from stimulus_moo.lab.cli.names import starting_with
from stimulus_moo.lab.runs.torchrun import refuse_torchrun


def _complete(incomplete: str) -> list[str]:
    from stimulus_moo.lab.board.problems import PROBLEMS

    return starting_with(incomplete, PROBLEMS)


@handle_errors
def board(
    problems: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[PROBLEM]...", help="Problems, or FILE.arff:TARGETS; default: all.", autocompletion=_complete
        ),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Tiny budgets and one seed, about ten minutes; the figures mean nothing.")
    ] = False,
    out: Annotated[Path, typer.Option(help="Directory of the runs and pages.")] = RUNS / "board",
    page: Annotated[Path | None, typer.Option(help="A further copy of the page in Markdown.")] = None,
    data: Data = None,
    processes: Annotated[int | None, typer.Option(min=1, help="Processes.", show_default="one per core")] = None,
) -> None:
    """Train every method on real problems at equal budgets, and compare the field's metrics on test data.

    Runs that are complete are not repeated, so an interrupted board continues where it stopped. All problems take up to
    six hours on two cores. For example: stimulus-moo board compas riverflow
    """
    from stimulus_moo.lab.board.make import MARKDOWN, PAGE, make_board
    from stimulus_moo.lab.board.problems import PROBLEMS
    from stimulus_moo.lab.runs.storage import write_text

    refuse_torchrun("the scoreboard")
    workers = processes or os.cpu_count() or 1
    found = make_board(problems or list(PROBLEMS), out, stderr(), quick=quick, data=data, workers=workers)
    if page is not None:
        write_text(page, (out / MARKDOWN).read_text(encoding="utf-8"))
    _print(found)
    typer.echo(f"page: {out / PAGE}")


def _print(found: dict[str, Any]) -> None:
    """Print the table of all problems: Delta m per problem, best mean rank first."""
    from stimulus_moo.lab.board.markdown import number

    kind = "seconds" if found["overall"]["seconds"] else "passes"
    title = f"Delta m % on test data, lower is better; equal {kind}"
    table = Table("Method", "Mean rank", *(problem["name"] for problem in found["problems"]), title=title)
    for row in found["overall"][kind]:
        cells = [
            next((one["delta_m"] for one in problem["tables"][kind] if one["rival"] == row["rival"]), None)
            for problem in found["problems"]
        ]
        shown = [number(value, 2) for value in cells]
        table.add_row(row["rival"], f"{row['rank']:.2f}", *shown)
    stdout().print(table)
