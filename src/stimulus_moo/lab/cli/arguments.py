"""Arguments shared by several commands: the name of an experiment or study, and the common options."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from stimulus_moo.lab.cli.names import find, starting_with
from stimulus_moo.lab.experiment import Experiment
from stimulus_moo.lab.methods import LAB_METHODS
from stimulus_moo.lab.study import Study

#: Default directory of all runs.
RUNS = Path("runs")
#: Default number of seeds.
SEEDS = 3


class NonFinite(StrEnum):
    """The choices of ``on_nonfinite``."""

    RAISE = "raise"
    SKIP = "skip"


def catalogue() -> tuple[Mapping[str, Experiment], Mapping[str, Study]]:
    """Return the experiments and the studies by name."""
    from stimulus_moo.lab.experiments import EXPERIMENTS
    from stimulus_moo.lab.studies import STUDIES

    return EXPERIMENTS, STUDIES


def chosen_by(name: str) -> Experiment | Study:
    """Return the experiment or study with this name.

    Raises:
        InvalidOption: there is none; the message suggests the closest match.
    """
    experiments, studies = catalogue()
    known: dict[str, Experiment | Study] = {**experiments, **studies}
    return known[find(name, known, "experiment or study")]


def _complete_name(incomplete: str) -> list[str]:
    return [name for known in catalogue() for name in starting_with(incomplete, known)]


def complete_method(incomplete: str) -> list[str]:
    """Return the methods that start with ``incomplete``, for shell completion."""
    return starting_with(incomplete, LAB_METHODS)


def complete_methods(incomplete: str) -> list[str]:
    """Return the completions of a comma-separated list of methods.

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
    typer.Option(help="Data folder. Default: STIMULUS_MOO_DATA, then the user's cache, then a download."),
]
Resume = Annotated[bool, typer.Option("--resume", help="Continue the runs found there; start those that are missing.")]
Quick = Annotated[bool, typer.Option("--quick", help="Use a small version that takes about a minute.")]
Every = Annotated[
    int | None,
    typer.Option(min=1, help="Steps between two checkpoints.", show_default="a tenth of the steps"),
]
Workers = Annotated[
    int,
    typer.Option(
        min=0, help="Worker processes that load the batches of a map-style data set; results do not depend on it."
    ),
]
OnNonFinite = Annotated[
    NonFinite,
    typer.Option(help="Action at a NaN or infinite loss or gradient: end the run with exit code 3, or skip the step."),
]
Pairs = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="Any other setting, for example of a study; may be repeated."),
]
