"""``stimulus-moo data``: list, fetch and check data sets."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from stimulus_moo.lab.cli.console import stdout
from stimulus_moo.lab.cli.error_handling import handle_errors
from stimulus_moo.lab.cli.names import find, starting_with
from stimulus_moo.lab.data import DATASETS, DataStatus, check_data, fetch_data, list_data

app = typer.Typer(no_args_is_help=True, help="List, fetch and check data sets.")

_COLOURS = {"present": "green", "built in": "green", "missing": "yellow", "damaged": "red"}


def _complete(incomplete: str) -> list[str]:
    return starting_with(incomplete, DATASETS)


Folder = Annotated[
    Path | None,
    typer.Option("--data", help="Data folder. Default: STIMULUS_MOO_DATA, then the user's cache."),
]


@app.command("list")
@handle_errors
def list_sets(data: Folder = None) -> None:
    """List the data sets and their folders; only file names and sizes are checked."""
    _print(list_data(data))


@app.command()
@handle_errors
def fetch(
    names: Annotated[list[str], typer.Argument(metavar="NAME", help="Data sets to fetch.", autocompletion=_complete)],
    data: Annotated[
        Path | None,
        typer.Option("--data", help="Data folder to write to. Default: the user's cache."),
    ] = None,
) -> None:
    """Download files that are missing or damaged, and verify their SHA-256."""
    for name in [find(name, DATASETS, "data set") for name in names]:
        _print([fetch_data(name, data, progress=sys.stderr.isatty())])


@app.command()
@handle_errors
def check(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME", help="Data sets to check. Default: all.", autocompletion=_complete),
    ] = None,
    data: Folder = None,
) -> None:
    """Verify the SHA-256 of every file; exit with 1 if a file is damaged, or missing from a named data set."""
    found = [check_data(find(name, DATASETS, "data set"), data) for name in names or DATASETS]
    _print(found)
    bad = {"damaged", "missing"} if names else {"damaged"}
    if any(status.state in bad for status in found):
        raise typer.Exit(1)


def _print(found: Iterable[DataStatus]) -> None:
    table = Table("Data set", "State", "What it is", "Where, or how to get it", "Licence")
    for status in found:
        where = str(status.folder) if status.folder else status.how_to_get
        where = "\n".join((where, *status.problems))
        state = Text(status.state, style=_COLOURS.get(status.state, ""))
        table.add_row(Text(status.name), state, Text(status.title), Text(where), Text(status.licence))
    stdout().print(table)
