"""``stimulus-moo demo``: auto against tuned methods on a small problem at equal passes, with a table and a report."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from stimulus_moo.lab.cli import arguments
from stimulus_moo.lab.cli.arguments import RUNS
from stimulus_moo.lab.cli.compare import compared_runs
from stimulus_moo.lab.cli.console import stdout
from stimulus_moo.lab.cli.error_handling import handle_errors
from stimulus_moo.lab.cli.tables import print_results
from stimulus_moo.lab.methods import LAB_METHODS
from stimulus_moo.lab.runs.torchrun import refuse_torchrun

DEMO_SEEDS = 2
#: Learning rates, the best of the grid in `stimulus-moo tune digits --passes 60000 --decay 0.5 --methods
#: smgd,stimulus-m,scalarisation-adam,upgrad-adam`. They fall to zero over the last half, as that of auto does.
RATES = {"auto": "auto", "smgd": 0.3, "stimulus-m": 1.0, "scalarisation-adam": 0.03, "upgrad-adam": 0.03}
DEMO_METHODS = tuple(method for method in RATES if method in LAB_METHODS)
DEMO_SETTINGS = {"steps": None, "gradients": None, "passes": 60_000, "decay": 0.5, "lr_of": RATES}


@handle_errors
def demo(out: Annotated[Path, typer.Option(help="Directory of the runs and the report.")] = RUNS / "demo") -> None:
    """Compare auto with tuned methods on two overlapping digits, write the report and print the table, in a minute.

    All methods have 60,000 passes. Runs that are complete are not repeated, so an interrupted demo continues where it
    stopped. `stimulus-moo compare digits` compares the methods of the paper.
    """
    from stimulus_moo.lab.report import write_report

    refuse_torchrun("the demo")
    experiment = arguments.catalogue()[0]["digits"]
    settings = experiment.settings.override(DEMO_SETTINGS)
    runs = compared_runs(experiment, DEMO_METHODS, settings, DEMO_SEEDS, out, resume=True)
    written = write_report(out)
    print_results(stdout(), runs)
    typer.echo(f"report: {written}")
