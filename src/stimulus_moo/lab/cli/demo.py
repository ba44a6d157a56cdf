"""``stimulus-moo demo``: auto against tuned methods on two problems, and a Pareto front, with tables and a page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from stimulus_moo.lab.cli import arguments
from stimulus_moo.lab.cli.arguments import RUNS
from stimulus_moo.lab.cli.compare import compared_runs
from stimulus_moo.lab.cli.console import stderr, stdout
from stimulus_moo.lab.cli.error_handling import handle_errors
from stimulus_moo.lab.cli.tables import print_table
from stimulus_moo.lab.runs.torchrun import refuse_torchrun


@handle_errors
def demo(out: Annotated[Path, typer.Option(help="Directory of the runs and the page.")] = RUNS / "demo") -> None:
    """Compare auto with tuned methods on two small problems, trace a Pareto front, and write a page, in two minutes.

    The data comes with scikit-learn. Runs that are complete are not repeated, so an interrupted demo continues where
    it stopped. `stimulus-moo compare digits` compares the methods of the paper.
    """
    from stimulus_moo.lab.demo.advice import advice
    from stimulus_moo.lab.demo.page import front_sentence, front_table, results_table, write_page
    from stimulus_moo.lab.demo.patients import trace_front
    from stimulus_moo.lab.demo.problems import COMPARISONS, SEEDS
    from stimulus_moo.lab.demo.result import result_of

    refuse_torchrun("the demo")
    experiments, results = arguments.catalogue()[0], []
    for comparison in COMPARISONS:
        experiment = experiments[comparison.experiment]
        settings = comparison.settings(experiment)
        runs = compared_runs(experiment, comparison.methods, settings, SEEDS, out, resume=True)
        results.append(result_of(comparison, experiment, runs))
    stderr().print("Pareto front of two groups of patients", highlight=False)
    front = trace_front(out / "front")
    for found in results:
        print_table(stdout(), results_table(found))
    print_table(stdout(), front_table(front))
    for sentences in (*(" ".join(advice(found)) for found in results), front_sentence(front)):
        stdout().print(f"\n{sentences}", markup=False, highlight=False)
    typer.echo(f"\npage: {write_page(out, results, front)}")
