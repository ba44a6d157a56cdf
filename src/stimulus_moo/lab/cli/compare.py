"""``stimulus-moo compare``: several methods and seeds of an experiment, or a study, with a table of results."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer

from stimulus_moo import InvalidOption
from stimulus_moo.lab.cli.arguments import (
    RUNS,
    SEEDS,
    Data,
    Every,
    Name,
    NonFinite,
    OnNonFinite,
    Pairs,
    Quick,
    Resume,
    Workers,
    chosen_by,
    complete_methods,
)
from stimulus_moo.lab.cli.console import stderr, stdout
from stimulus_moo.lab.cli.error_handling import handle_errors
from stimulus_moo.lab.cli.names import find_methods
from stimulus_moo.lab.cli.run import data_setting, run_and_print_study
from stimulus_moo.lab.cli.setting_options import experiment_settings, study_settings, with_settings
from stimulus_moo.lab.cli.tables import print_results
from stimulus_moo.lab.experiment import Experiment, ExperimentSettings
from stimulus_moo.lab.runs import RecordedRun, load_runs, run_folder
from stimulus_moo.lab.runs.runner import compare as compare_methods
from stimulus_moo.lab.runs.runner import with_baselines
from stimulus_moo.lab.runs.torchrun import together
from stimulus_moo.lab.runs.watch import Watch
from stimulus_moo.lab.study import Study


@handle_errors
@with_settings
def compare(
    name: Name,
    changes: dict[str, Any],
    methods: Annotated[
        str | None,
        typer.Option(
            help="Methods, separated by commas; the scalarisation baselines are always added.",
            show_default="the experiment's",
            autocompletion=complete_methods,
        ),
    ] = None,
    seeds: Annotated[
        int | None,
        typer.Option(min=1, max=10_000, help="Number of seeds: 0, 1, ...", show_default="3, or 1 with --quick"),
    ] = None,
    out: Annotated[Path, typer.Option(help="Directory of all the runs.")] = RUNS,
    data: Data = None,
    resume: Resume = False,
    quick: Quick = False,
    checkpoint_every: Every = None,
    workers: Workers = 0,
    on_nonfinite: OnNonFinite = NonFinite.RAISE,
    pairs: Pairs = None,
) -> None:
    """Run several methods of an experiment with several seeds, or a study, and print a table.

    For example: stimulus-moo compare digits --methods smgd,stimulus-m --seeds 2
    """
    chosen = chosen_by(name)
    seeds = seeds or (1 if quick else SEEDS)
    if isinstance(chosen, Study):
        if methods is not None:
            raise InvalidOption(f"{name} is a study, which chooses its own methods: leave out --methods")
        settings = study_settings(chosen, quick, {**changes, **data_setting(data)}, pairs or ())
        run_and_print_study(chosen, settings, seeds, out / name, resume)
        return
    names = with_baselines(chosen.methods if methods is None else find_methods(methods))
    wanted = experiment_settings(chosen, quick, changes, pairs or ())
    options: dict[str, Any] = {"checkpoint_every": checkpoint_every, "workers": workers, "on_nonfinite": on_nonfinite}
    with together() as first:
        runs = compared_runs(chosen, names, wanted, seeds, out, first, resume=resume, data=data, **options)
    if first:
        print_results(stdout(), runs)
        typer.echo(f"kept in {out / name}; for the figures: stimulus-moo report {out}")


def compared_runs(
    experiment: Experiment,
    methods: Sequence[str],
    settings: ExperimentSettings,
    seeds: int,
    out: Path,
    first: bool = True,
    **options: Any,
) -> list[RecordedRun]:
    """Run a comparison and return its runs only, not those of other methods and seeds in the same directory."""
    total = len(methods) * seeds
    with Watch(stderr(), experiment.title, total) if first else nullcontext() as watch:
        compare_methods(experiment, methods, settings, range(seeds), out, progress=watch, **options)
    folders = {run_folder(out, experiment.name, method, seed) for method in methods for seed in range(seeds)}
    return [run for run in load_runs(out / experiment.name) if run.folder in folders]
