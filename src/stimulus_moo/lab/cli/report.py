"""``stimulus-moo report``: the page of a directory of runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from stimulus_moo import InvalidOption
from stimulus_moo.lab.cli.error_handling import handle_errors
from stimulus_moo.lab.runs.directory import SETTINGS


@handle_errors
def report(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Directory with runs, studies or both.")],
) -> None:
    """Write report.html, with every figure and table, from the runs in a directory.

    For example: stimulus-moo report runs
    """
    from stimulus_moo.lab.report import write_report

    if not folder.is_dir():
        raise InvalidOption(f"there is no directory {str(folder)!r}; name one that holds runs")
    if next(folder.rglob(SETTINGS), None) is None:
        raise InvalidOption(f"{folder} holds no runs; make some first, for example with `stimulus-moo compare digits`")
    typer.echo(f"report: {write_report(folder)}")
