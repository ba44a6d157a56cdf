"""What several commands take: the name of an experiment or a study, and the options they share."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from stimulus_moo import METHODS
from stimulus_moo.lab.cli_options import find
from stimulus_moo.lab.experiment import Experiment
from stimulus_moo.lab.study import Study


class NonFinite(StrEnum):
    """The choices of ``on_nonfinite``."""

    RAISE = "raise"
    SKIP = "skip"


def catalogue() -> tuple[Mapping[str, Experiment], Mapping[str, Study]]:
    """Return the experiments and the studies by name."""
    from stimulus_moo.lab.experiments import EXPERIMENTS, STUDIES

    return EXPERIMENTS, STUDIES


def chosen_by(name: str) -> Experiment | Study:
    """Return the experiment or study of a name.

    Raises:
        InvalidOption: there is none; the message suggests the nearest.
    """
    experiments, studies = catalogue()
    known: dict[str, Experiment | Study] = {**experiments, **studies}
    return known[find(name, known, "experiment or study")]


def _complete_name(incomplete: str) -> list[str]:
    return [name for known in catalogue() for name in known if name.startswith(incomplete)]


def complete_method(incomplete: str) -> list[str]:
    """Return the methods that begin so, for the shell."""
    return [name for name in ("auto", *METHODS) if name.startswith(incomplete)]


def complete_methods(incomplete: str) -> list[str]:
    """Return what a list with commas can go on with: what is there, and one more method.

    >>> complete_methods("mgd,stimulus-m")
    ['mgd,stimulus-m', 'mgd,stimulus-m+']
    """
    done, comma, last = incomplete.rpartition(",")
    return [f"{done}{comma}{name}" for name in complete_method(last) if name not in done.split(",")]


Name = Annotated[
    str,
    typer.Argument(
        metavar="EXPERIMENT", help="An experiment or a study; see `stimulus-moo list`.", autocompletion=_complete_name
    ),
]
Data = Annotated[
    Path | None,
    typer.Option(help="The data folder; without it STIMULUS_MOO_DATA, then the user's cache, then a download."),
]
Resume = Annotated[bool, typer.Option("--resume", help="Continue what is there, or start where there is nothing yet.")]
Quick = Annotated[bool, typer.Option("--quick", help="Shrink it to about a minute.")]
Every = Annotated[
    int | None,
    typer.Option(min=1, help="Steps between two checkpoints.", show_default="a tenth of the steps"),
]
Workers = Annotated[
    int,
    typer.Option(
        min=0, help="Processes that fetch the batches of a map-style data set ahead; the results are the same."
    ),
]
OnNonFinite = Annotated[
    NonFinite,
    typer.Option(help="What a step that meets NaN or infinity does: end the run with exit code 3, or be left out."),
]
Pairs = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="Any other setting, for example of a study; may be repeated."),
]
