"""``stimulus-moo run``: one run of an experiment, or a study."""

from __future__ import annotations

from collections.abc import Mapping
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
    complete_method,
)
from stimulus_moo.lab.cli.console import stderr, stdout
from stimulus_moo.lab.cli.error_handling import handle_errors
from stimulus_moo.lab.cli.names import find_method
from stimulus_moo.lab.cli.setting_options import experiment_settings, study_settings, with_settings
from stimulus_moo.lab.cli.tables import print_results, print_study
from stimulus_moo.lab.runs import load_runs, run_folder
from stimulus_moo.lab.runs.runner import run_one, run_study
from stimulus_moo.lab.runs.torchrun import refuse_torchrun, together
from stimulus_moo.lab.runs.watch import Watch
from stimulus_moo.lab.study import Study


@handle_errors
@with_settings
def run(
    name: Name,
    changes: dict[str, Any],
    method: Annotated[
        str | None,
        typer.Option(
            help="A method by name; see `stimulus-moo list`.",
            show_default="auto",
            autocompletion=complete_method,
        ),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=(1 << 63) - 1,
            help="Seed of the initialization, the batches and all other random numbers.",
            show_default="0",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Directory of this run.", show_default="runs/EXPERIMENT/METHOD/seed-SEED"),
    ] = None,
    data: Data = None,
    resume: Resume = False,
    quick: Quick = False,
    checkpoint_every: Every = None,
    workers: Workers = 0,
    on_nonfinite: OnNonFinite = NonFinite.RAISE,
    pairs: Pairs = None,
) -> None:
    """Run one method of an experiment with one seed, or a study.

    For example: stimulus-moo run digits --method stimulus-m+ --quick
    """
    chosen = chosen_by(name)
    if isinstance(chosen, Study):
        if method is not None or seed is not None:
            raise InvalidOption(
                f"{name} is a study, which chooses its own methods and seeds: leave out --method and --seed; "
                f"`stimulus-moo compare {name} --seeds K` sets the number of seeds"
            )
        settings = study_settings(chosen, quick, {**changes, **data_setting(data)}, pairs or ())
        run_and_print_study(chosen, settings, 1 if quick else SEEDS, out or RUNS / name, resume)
        return
    method, seed = find_method(method or "auto"), seed or 0
    wanted = experiment_settings(chosen, quick, changes, pairs or ())
    folder = out or run_folder(RUNS, name, method, seed)
    options: dict[str, Any] = {"checkpoint_every": checkpoint_every, "workers": workers, "on_nonfinite": on_nonfinite}
    with together() as first, Watch(stderr(), chosen.title, 1) if first else nullcontext() as watch:
        summary = run_one(chosen, method, wanted, seed, folder, resume=resume, data=data, progress=watch, **options)
    if first:
        print_results(stdout(), load_runs(folder))
        typer.echo(f"kept in {folder}")
    if summary["diverged"]:
        raise typer.Exit(3)


def run_and_print_study(study: Study, settings: Mapping[str, Any], seeds: int, out: Path, resume: bool) -> None:
    """Run a study in its directory and print its findings."""
    refuse_torchrun(f"the study {study.name}")
    with Watch(stderr(), study.title, None) as watch:
        report = run_study(study, settings, seeds, out, resume=resume, progress=watch)
    print_study(stdout(), report)
    typer.echo(f"kept in {out}; for the figures: stimulus-moo report {out}")


def data_setting(folder: Path | None) -> dict[str, str]:
    """Return the data folder as a setting of a study."""
    return {} if folder is None else {"data": str(folder)}
