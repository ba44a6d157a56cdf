"""``stimulus-moo front``: the Pareto front of an experiment, and ``front show``: the table and page of a saved one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.table import Table

from stimulus_moo import InvalidOption
from stimulus_moo.fronts import Front, pareto_front
from stimulus_moo.lab.cli.arguments import RUNS, Data, Pairs, Quick, Resume, chosen_by
from stimulus_moo.lab.cli.console import stdout
from stimulus_moo.lab.cli.error_handling import handle_errors
from stimulus_moo.lab.cli.setting_options import experiment_settings
from stimulus_moo.lab.study import Study

_SHOW = "show"


@handle_errors
def front(
    name: Annotated[str, typer.Argument(metavar="EXPERIMENT | show", help="An experiment, or `show` and a directory.")],
    directory: Annotated[Path | None, typer.Argument(help="With `show`: the directory of a front.")] = None,
    points: Annotated[int, typer.Option(min=2, help="Number of points.")] = 11,
    steps: Annotated[int, typer.Option(min=1, help="Steps of a point from scratch.")] = 1000,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the initialization and the batches.")] = 0,
    out: Annotated[
        Path | None, typer.Option(help="Directory of the front.", show_default="runs/EXPERIMENT/front")
    ] = None,
    data: Data = None,
    resume: Resume = False,
    quick: Quick = False,
    processes: Annotated[int, typer.Option(min=1, help="Processes that train points at the same time.")] = 1,
    pairs: Pairs = None,
) -> None:
    """Trace the Pareto front of an experiment, or show a saved one.

    For example: stimulus-moo front digits --points 5, then stimulus-moo front show runs/digits/front
    """
    if name == _SHOW:
        if directory is None:
            raise InvalidOption("front show needs the directory of a front, for example runs/digits/front")
        _print(Front.load(directory), directory)
        return
    chosen = chosen_by(name)
    if isinstance(chosen, Study):
        raise InvalidOption(f"{name} is a study, which has no front; name an experiment")
    folder = out or RUNS / name / "front"
    if not resume and (folder / "front.json").exists():
        raise InvalidOption(f"{folder} already has a front; pass --resume to continue it, or another --out")
    settings = experiment_settings(chosen, quick, {}, pairs or ())
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        problem = chosen.build(settings, seed, data)
        found = pareto_front(
            problem.model,
            problem.losses,
            problem.data,
            points=points,
            steps=steps,
            folder=folder,
            names=problem.tasks,
            workers=processes,
            progress=True,
            batch_size=settings.batch_size,
            seed=seed,
        )
    _print(found, folder)


def _print(found: Front, folder: Path) -> None:
    """Print the points in the order of the first loss, and write the page anew."""
    found.save(folder)
    table = Table("Point", *found.names, "Passes", "", title=f"Pareto front: {found}", title_justify="left")
    best = found.nondominated
    for k in found.losses[:, 0].argsort().tolist():
        point = found.points[k]
        losses = [f"{loss:.4g}" for loss in point.losses]
        table.add_row(str(point.number), *losses, str(point.passes), "" if best[k] else "dominated")
    stdout().print(table)
    typer.echo(f"kept in {folder}; page: {folder / 'front.html'}")
