"""Runs experiments and studies into run directories, with public names alone, as any user would."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from stimulus_moo.distributed import find_group
from stimulus_moo.lab.experiment import Experiment, ExperimentSettings
from stimulus_moo.lab.runs.cells import Cells
from stimulus_moo.lab.runs.directory import CELLS, SETTINGS, STUDY, SUMMARY, describe, occupied, open_folder, run_folder
from stimulus_moo.lab.runs.lock import FolderLock
from stimulus_moo.lab.runs.storage import plain, read_json, write_json
from stimulus_moo.lab.runs.torchrun import first_alone
from stimulus_moo.lab.runs.training import Training
from stimulus_moo.lab.study import Study

if TYPE_CHECKING:
    from stimulus_moo.lab.runs.watch import Watch

#: between the seeds of two processes, each of which has a random stream of its own
_STREAM = 1_000_003

#: What every comparison shows beside the methods asked for.
BASELINES = ("scalarisation", "scalarisation-adam")


def with_baselines(methods: Sequence[str]) -> tuple[str, ...]:
    """Return the methods, each once, and the scalarisation baselines if they are not among them.

    >>> with_baselines(["mgd", "scalarisation"])
    ('mgd', 'scalarisation', 'scalarisation-adam')
    """
    return tuple(dict.fromkeys((*methods, *BASELINES)))


def run_one(
    experiment: Experiment,
    method: str,
    settings: ExperimentSettings,
    seed: int,
    out: Path,
    *,
    resume: bool = False,
    data: Path | None = None,
    progress: Watch | None = None,
    checkpoint_every: int | None = None,
    workers: int = 0,
    on_nonfinite: str = "raise",
) -> dict[str, Any]:
    """Run one method with one seed, and return its summary; processes that have joined make one run of it.

    Args:
        experiment: what to run.
        method: a name of ``METHODS``.
        settings: the experiment's, possibly changed.
        seed: of the model's start, the batches and every other draw.
        out: the run directory itself.
        resume: continue what is there, or start where there is nothing yet; a complete run is left as it is.
        data: the data folder.
        progress: what shows the run.
        checkpoint_every: in steps; default a tenth of the steps, at most 1000, or 25 where only gradients are limited.
        workers, on_nonfinite: as for ``fit``.

    Raises:
        InvalidOption: the method cannot take its step size.
        RunError: the directory is in use, or holds a run already, another run or a damaged one.
        Interrupted: a signal came; the run can be resumed.
    """
    settings.for_method(method)  # what cannot be is refused before anything is there
    training = Training(experiment, method, settings, seed, out, checkpoint_every, workers, on_nonfinite)
    group = find_group(None, shard=False)
    with ExitStack() as held:

        def open_run() -> dict[str, Any] | None:
            held.enter_context(FolderLock(out))
            return read_json(out / SUMMARY) if open_folder(out, training.asked(), resume) is not None else None

        complete: dict[str, Any] | None = group.broadcast(open_run)  # the first process's directory is that of all
        if complete is not None:
            if progress is not None:
                progress.skipped(f"{experiment.name}, {method}, seed {seed}")
            return complete
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            with first_alone():
                problem = experiment.build(settings, seed, data)
            torch.manual_seed(seed + _STREAM * group.rank)
            return training.run(problem, resume, progress)


def compare(
    experiment: Experiment,
    methods: Sequence[str],
    settings: ExperimentSettings,
    seeds: Sequence[int],
    out: Path,
    *,
    resume: bool = False,
    data: Path | None = None,
    progress: Watch | None = None,
    checkpoint_every: int | None = None,
    workers: int = 0,
    on_nonfinite: str = "raise",
) -> list[dict[str, Any]]:
    """Run methods with seeds, each in its directory under ``out``, and return the summaries, seed by seed.

    A method that diverges does not end the comparison: its summary says so.

    Raises:
        InvalidOption: as for ``run_one``, before any starts.
        RunError: as for ``run_one``; without ``resume`` also if any of the runs exists already, before any starts.
        Interrupted: a signal came; the comparison can be resumed.
    """
    for method in methods:
        settings.for_method(method)  # what cannot be is refused before the first run
    planned = [(method, seed, run_folder(out, experiment.name, method, seed)) for seed in seeds for method in methods]
    if not resume:
        for _, _, folder in planned:
            if (folder / SETTINGS).exists():
                raise occupied(folder)
    return [
        run_one(
            experiment,
            method,
            settings,
            seed,
            folder,
            resume=resume,
            data=data,
            progress=progress,
            checkpoint_every=checkpoint_every,
            workers=workers,
            on_nonfinite=on_nonfinite,
        )
        for method, seed, folder in planned
    ]


def run_study(
    study: Study,
    settings: Mapping[str, Any],
    seeds: int,
    out: Path,
    *,
    resume: bool = False,
    progress: Watch | None = None,
) -> dict[str, Any]:
    """Run a study in its directory, keeping every finished cell, and return its report.

    Raises:
        RunError: the directory is in use, or holds a study already, another one or a damaged one.
    """
    asked = {"study": study.name, "seeds": seeds, "settings": dict(settings)}
    with FolderLock(out):
        if open_folder(out, asked, resume) is None:
            write_json(out / SETTINGS, describe({**asked, "title": study.title, "claim": study.claim}))
        complete = read_json(out / STUDY)
        if complete is not None:
            if progress is not None:
                progress.skipped(study.name)
            return complete

        def finished(key: Mapping[str, Any]) -> None:
            if progress is not None:
                progress.end(f"{study.name}: {', '.join(f'{name} {value}' for name, value in key.items())}")

        cells = Cells(out / CELLS, finished)
        try:
            found = study.run(settings, seeds, cells)
        finally:
            cells.close()
        about = {"name": study.name, "title": study.title, "claim": study.claim, "settings": settings, "seeds": seeds}
        remarks = [*_remarks(study, settings), *found.get("findings", ())]
        report: dict[str, Any] = plain({**about, **found, "findings": remarks})
        write_json(out / STUDY, report)
    return report


def _remarks(study: Study, settings: Mapping[str, Any]) -> list[str]:
    """Say so where a study was not run with its own settings; where the data lies decides nothing."""
    changed = [name for name in settings if name != "data" and settings[name] != study.settings.get(name)]
    if not changed:
        return []
    return [f"Run with settings other than the study's own ({', '.join(changed)}): the verdict is not conclusive."]
