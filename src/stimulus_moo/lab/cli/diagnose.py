"""``stimulus-moo diagnose``: whether multi-objective training pays on an experiment, and what is in its way."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import torch
import typer

from stimulus_moo import InvalidOption
from stimulus_moo.diagnosis import diagnose as diagnose_problem
from stimulus_moo.lab.cli.arguments import RUNS, Data, Pairs, Quick, chosen_by
from stimulus_moo.lab.cli.error_handling import handle_errors
from stimulus_moo.lab.cli.setting_options import experiment_settings
from stimulus_moo.lab.study import Study


@handle_errors
def diagnose(
    name: Annotated[str, typer.Argument(metavar="EXPERIMENT", help="An experiment; see `stimulus-moo list`.")],
    steps: Annotated[int, typer.Option(min=1, help="Steps of every short run.")] = 300,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the initialization, the split and the batches.")] = 0,
    out: Annotated[
        Path | None, typer.Option(help="File of the page.", show_default="runs/EXPERIMENT/diagnosis.html")
    ] = None,
    data: Data = None,
    quick: Quick = False,
    pairs: Pairs = None,
) -> None:
    """Tell whether the losses of an experiment conflict, differ in scale, are noisy, pinned or unlearnable.

    For example: stimulus-moo diagnose digits
    """
    chosen = chosen_by(name)
    if isinstance(chosen, Study):
        raise InvalidOption(f"{name} is a study, which has no losses to diagnose; name an experiment")
    settings = experiment_settings(chosen, quick, {}, pairs or ())
    with torch.random.fork_rng(devices=[]):
        problem = chosen.build(settings, seed, data)
    found = diagnose_problem(
        problem.model,
        problem.losses,
        problem.data,
        batch_size=settings.batch_size,
        steps=steps,
        shared=problem.shared,
        names=problem.tasks,
        seed=seed,
    )
    path = out or RUNS / name / "diagnosis.html"
    path.parent.mkdir(parents=True, exist_ok=True)
    found.save(path)
    typer.echo(str(found))
    typer.echo(f"page: {path}")
