"""``stimulus-moo tune``: the step size of every method, by grid search."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from stimulus_moo import InvalidOption
from stimulus_moo.lab.cli.arguments import Data, Name, Pairs, Quick, chosen_by, complete_methods
from stimulus_moo.lab.cli.console import stderr, stdout
from stimulus_moo.lab.cli.error_handling import handle_errors
from stimulus_moo.lab.cli.names import find_methods
from stimulus_moo.lab.cli.setting_options import experiment_settings, with_settings
from stimulus_moo.lab.methods import LAB_METHODS
from stimulus_moo.lab.runs.runner import with_baselines
from stimulus_moo.lab.runs.tuning import Tuned
from stimulus_moo.lab.runs.tuning import tune as tune_method
from stimulus_moo.lab.runs.watch import Watch
from stimulus_moo.lab.study import Study


@handle_errors
@with_settings
def tune(
    name: Name,
    changes: dict[str, Any],
    methods: Annotated[
        str | None,
        typer.Option(
            help="Methods, separated by commas.",
            show_default="the experiment's, and the scalarisation baselines",
            autocompletion=complete_methods,
        ),
    ] = None,
    data: Data = None,
    quick: Quick = False,
    pairs: Pairs = None,
) -> None:
    """Find the best step size of every method by grid search, on seeds that no comparison uses.

    The last line is an option for `compare`. For example: stimulus-moo tune digits --methods stimulus-m
    """
    chosen = chosen_by(name)
    if isinstance(chosen, Study):
        raise InvalidOption(f"{name} is a study, which chooses its own step sizes; tune an experiment")
    names = with_baselines(chosen.methods) if methods is None else find_methods(methods)
    settings = experiment_settings(chosen, quick, changes, pairs or ())
    if settings.lr == "auto":
        raise InvalidOption(
            f"tune tries a grid of step sizes, found --lr auto; leave it out, or evaluate it with "
            f"`stimulus-moo compare {name} --lr auto`"
        )
    with Watch(stderr(), f"{chosen.title}: step sizes", None) as watch:
        found = [tune_method(chosen, method, settings, data=data, report=watch.end) for method in names]
    _print(found)
    typer.echo("--lr-of " + ",".join(f"{tuned.method}={tuned.best:g}" for tuned in found))


def _print(found: list[Tuned]) -> None:
    rates = sorted({lr for tuned in found for lr in tuned.scores})
    title = "Mean training loss by step size"
    table = Table("Method", *(f"{lr:g}" for lr in rates), title=title, title_justify="left")
    for tuned in found:
        scores = [
            Text(f"{tuned.scores[lr]:.4g}" if lr in tuned.scores else "", style="bold" if lr == tuned.best else "")
            for lr in rates
        ]
        table.add_row(LAB_METHODS[tuned.method].title, *scores)
    stdout().print(table)
