"""The command line ``stimulus-moo``: the paper's claims as commands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer

import stimulus_moo
from stimulus_moo import InvalidOption
from stimulus_moo.lab import cli_arguments, cli_data, cli_rank, cli_tune
from stimulus_moo.lab.cli_arguments import (
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
    complete_methods,
)
from stimulus_moo.lab.cli_guard import guarded, stderr, stdout
from stimulus_moo.lab.cli_options import experiment_settings, find_method, study_settings, with_settings
from stimulus_moo.lab.cli_tables import print_catalogue, print_results, print_study
from stimulus_moo.lab.experiment import Experiment, Settings
from stimulus_moo.lab.runner import compare as compare_methods
from stimulus_moo.lab.runner import run_one, run_study, with_baselines
from stimulus_moo.lab.runs import SETTINGS, Run, load_runs, run_folder
from stimulus_moo.lab.study import Study
from stimulus_moo.lab.torchrun import refuse, together
from stimulus_moo.lab.watch import Watch

RUNS = Path("runs")
SEEDS = 3
DEMO_SEEDS = 2

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_show_locals=False,
    help="Stochastic multi-objective learning with variance-reduced multi-gradients: the paper's claims as commands.",
    epilog="Start with `stimulus-moo demo`, or see `stimulus-moo list`. The documentation begins at docs/index.md, "
    "that of this command at docs/lab.md. Exit codes: 0 done; 1 data check found damage; 2 cannot be done as asked; "
    "3 the run or the fit diverged; 70 something that should not happen; 130 and 143 stopped by Ctrl-C or SIGTERM, and "
    "can be resumed.",
)
app.add_typer(cli_data.app, name="data")
app.add_typer(cli_rank.app, name="rank")


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"stimulus-moo {stimulus_moo.__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Hold the options that stand before a command."""


@app.command("list")
@guarded
def list_all() -> None:
    """List experiments, studies and methods."""
    experiments, studies = cli_arguments.catalogue()
    print_catalogue(stdout(), experiments.values(), studies.values())


@app.command()
@guarded
@with_settings
def run(
    name: Name,
    changes: dict[str, Any],
    method: Annotated[
        str | None,
        typer.Option(
            help="A method by name, or auto; see `stimulus-moo list`.",
            show_default="stimulus-m",
            autocompletion=complete_method,
        ),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(
            min=0, max=(1 << 63) - 1, help="Of the model's start, the batches and every other draw.", show_default="0"
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="The run's own directory.", show_default="runs/EXPERIMENT/METHOD/seed-SEED"),
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
                f"{name} is a study, which chooses methods and seeds itself: leave out --method and --seed; "
                f"`stimulus-moo compare {name} --seeds K` sets how many seeds"
            )
        settings = study_settings(chosen, quick, {**changes, **_data(data)}, pairs or ())
        _study(chosen, settings, 1 if quick else SEEDS, out or RUNS / name, resume)
        return
    method, seed = find_method(method or "stimulus-m"), seed or 0
    wanted = experiment_settings(chosen, quick, changes, pairs or ())
    folder = out or run_folder(RUNS, name, method, seed)
    with together() as first, Watch(stderr(), chosen.title, 1) if first else nullcontext() as watch:
        summary = run_one(
            chosen,
            method,
            wanted,
            seed,
            folder,
            resume=resume,
            data=data,
            progress=watch,
            checkpoint_every=checkpoint_every,
            workers=workers,
            on_nonfinite=on_nonfinite,
        )
    if first:
        print_results(stdout(), load_runs(folder))
        typer.echo(f"kept in {folder}")
    if summary["diverged"]:
        raise typer.Exit(3)


@app.command()
@guarded
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
        typer.Option(min=1, max=10_000, help="How many seeds: 0, 1, ...", show_default="3, or 1 with --quick"),
    ] = None,
    out: Annotated[Path, typer.Option(help="The directory that holds all the runs.")] = RUNS,
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
            raise InvalidOption(f"{name} is a study, which chooses its methods itself: leave out --methods")
        settings = study_settings(chosen, quick, {**changes, **_data(data)}, pairs or ())
        _study(chosen, settings, seeds, out / name, resume)
        return
    names = chosen.methods if methods is None else [find_method(item) for item in methods.split(",")]
    wanted = experiment_settings(chosen, quick, changes, pairs or ())
    with together() as first:
        runs = _compare(
            chosen,
            with_baselines(names),
            wanted,
            seeds,
            out,
            first,
            resume=resume,
            data=data,
            checkpoint_every=checkpoint_every,
            workers=workers,
            on_nonfinite=on_nonfinite,
        )
    if first:
        print_results(stdout(), runs)
        typer.echo(f"kept in {out / name}; for the pictures: stimulus-moo report {out}")


app.command()(cli_tune.tune)


@app.command()
@guarded
def report(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A directory that holds runs, studies or both.")],
) -> None:
    """Write report.html, with every figure and table, from what a directory holds.

    For example: stimulus-moo report runs
    """
    from stimulus_moo.lab.report import write_report

    if not folder.is_dir():
        raise InvalidOption(f"there is no directory {str(folder)!r}; name one that holds runs")
    if next(folder.rglob(SETTINGS), None) is None:
        raise InvalidOption(f"{folder} holds no runs; make some first, for example with `stimulus-moo compare digits`")
    typer.echo(f"report: {write_report(folder)}")


@app.command()
@guarded
def demo(out: Annotated[Path, typer.Option(help="The directory that holds it all.")] = RUNS / "demo") -> None:
    """Compare every method on two overlapping digits, write the report and print the table, in about two minutes.

    What is there already is kept, so a demo that was stopped goes on where it was.
    """
    from stimulus_moo.lab.report import write_report

    refuse("the demo")
    experiment = cli_arguments.catalogue()[0]["digits"]
    methods = with_baselines(experiment.methods)
    runs = _compare(experiment, methods, experiment.settings, DEMO_SEEDS, out, resume=True)
    written = write_report(out)
    print_results(stdout(), runs)
    typer.echo(f"report: {written}")


def _data(folder: Path | None) -> dict[str, str]:
    """Return the data folder as the setting that it is for a study."""
    return {} if folder is None else {"data": str(folder)}


def _compare(
    experiment: Experiment,
    methods: Sequence[str],
    settings: Settings,
    seeds: int,
    out: Path,
    first: bool = True,
    **options: Any,
) -> list[Run]:
    """Run a comparison and return its runs, without those of other methods and seeds that the directory may hold."""
    total = len(methods) * seeds
    with Watch(stderr(), experiment.title, total) if first else nullcontext() as watch:
        compare_methods(experiment, methods, settings, range(seeds), out, progress=watch, **options)
    folders = {run_folder(out, experiment.name, method, seed) for method in methods for seed in range(seeds)}
    return [run for run in load_runs(out / experiment.name) if run.folder in folders]


def _study(study: Study, settings: Mapping[str, Any], seeds: int, out: Path, resume: bool) -> None:
    refuse(f"the study {study.name}")
    with Watch(stderr(), study.title, None) as watch:
        report = run_study(study, settings, seeds, out, resume=resume, progress=watch)
    print_study(stdout(), report)
    typer.echo(f"kept in {out}; for the pictures: stimulus-moo report {out}")
