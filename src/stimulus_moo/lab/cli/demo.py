"""``stimulus-moo demo``: every method on a small problem, with a table and a report."""

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
from stimulus_moo.lab.runs.runner import with_baselines
from stimulus_moo.lab.runs.torchrun import refuse_torchrun

DEMO_SEEDS = 2


@handle_errors
def demo(out: Annotated[Path, typer.Option(help="Directory of the runs and the report.")] = RUNS / "demo") -> None:
    """Compare every method on two overlapping digits, write the report and print the table, in about two minutes.

    Runs that are complete are not repeated, so an interrupted demo continues where it stopped.
    """
    from stimulus_moo.lab.report import write_report

    refuse_torchrun("the demo")
    experiment = arguments.catalogue()[0]["digits"]
    methods = with_baselines(experiment.methods)
    runs = compared_runs(experiment, methods, experiment.settings, DEMO_SEEDS, out, resume=True)
    written = write_report(out)
    print_results(stdout(), runs)
    typer.echo(f"report: {written}")
