"""``stimulus-moo data``: what data sets there are, where they are, and whether they are whole."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from stimulus_moo.lab.cli_guard import guarded, stdout
from stimulus_moo.lab.cli_options import find
from stimulus_moo.lab.data import DATASETS, DataStatus, check_data, fetch_data, list_data

app = typer.Typer(no_args_is_help=True, help="List, fetch and check data sets.")

_COLOURS = {"present": "green", "built in": "green", "missing": "yellow", "damaged": "red"}


def _complete(incomplete: str) -> list[str]:
    return [name for name in DATASETS if name.startswith(incomplete)]


Folder = Annotated[
    Path | None,
    typer.Option("--data", help="The data folder; without it STIMULUS_MOO_DATA, then the user's cache."),
]


@app.command("list")
@guarded
def list_sets(data: Folder = None) -> None:
    """List the data sets and where they are, by a quick look at names and sizes."""
    _print(list_data(data))


@app.command()
@guarded
def fetch(
    names: Annotated[list[str], typer.Argument(metavar="NAME", help="Data sets to fetch.", autocompletion=_complete)],
    data: Annotated[
        Path | None,
        typer.Option("--data", help="The data folder to write to; without it the user's cache."),
    ] = None,
) -> None:
    """Download what is missing or damaged, checked by SHA-256."""
    for name in [find(name, DATASETS, "data set") for name in names]:
        _print([fetch_data(name, data, progress=sys.stderr.isatty())])


@app.command()
@guarded
def check(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME", help="Data sets to check; all without a name.", autocompletion=_complete),
    ] = None,
    data: Folder = None,
) -> None:
    """Compare every file with its SHA-256; exit with 1 if one is damaged, or missing from a set that was named."""
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
