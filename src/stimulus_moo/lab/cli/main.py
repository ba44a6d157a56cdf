"""The ``stimulus-moo`` application: its options, and the commands it is made of."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import stimulus_moo
from stimulus_moo.errors import DOCS
from stimulus_moo.lab.cli import board, compare, data, demo, diagnose, front, list_all, rank, report, run, tune
from stimulus_moo.lab.cli.error_handling import handle_errors
from stimulus_moo.plugins import load_file, load_installed

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_show_locals=False,
    help="Stochastic multi-objective learning with variance-reduced multi-gradients: run and compare the experiments.",
    epilog=f"Start with `stimulus-moo demo`, or see `stimulus-moo list`. Documentation: {DOCS}lab.html. "
    "Exit codes: 0 done; 1 data check found damage; 2 the request cannot be carried out; 3 the run or the fit "
    "diverged; 70 unexpected error; 130 and 143 stopped by Ctrl-C or SIGTERM, and can be resumed.",
)
app.command("list")(list_all.list_all)
app.command()(run.run)
app.command()(compare.compare)
app.command()(tune.tune)
app.command()(front.front)
app.command()(report.report)
app.command()(demo.demo)
app.command()(board.board)
app.command()(diagnose.diagnose)
app.add_typer(data.app, name="data")
app.add_typer(rank.app, name="rank")


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"stimulus-moo {stimulus_moo.__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
    plugin: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="A Python file that adds methods, weightings or experiments; repeatable."),
    ] = None,
) -> None:
    """Load the plug-ins, before any command looks up a name."""
    _load(files=plugin or [])


@handle_errors
def _load(files: list[Path]) -> None:
    load_installed()
    for file in files:
        load_file(file)
