"""Execution of experiments and studies in run directories."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from stimulus_moo.distributed import find_group
from stimulus_moo.lab.experiment import Experiment, ExperimentSettings
from stimulus_moo.lab.runs.cells import Cells
from stimulus_moo.lab.runs.directory import (
    CELLS,
    SETTINGS,
    STUDY,
    SUMMARY,
    describe,
    occupied,
    open_folder,
    run_folder,
    versions,
)
from stimulus_moo.lab.runs.lock import RunLock
from stimulus_moo.lab.runs.reading import check_fields
from stimulus_moo.lab.runs.schema import settings_problem, study_problem, summary_problem
from stimulus_moo.lab.runs.storage import plain, read_json, write_json
from stimulus_moo.lab.runs.torchrun import first_alone
from stimulus_moo.lab.runs.training import Training
from stimulus_moo.lab.study import Study
from stimulus_moo.training.files import remove_leftovers

if TYPE_CHECKING:
    from stimulus_moo.lab.runs.watch import Watch

#: Offset between the seeds of two processes, so that each has its own random stream.
_STREAM = 1_000_003

#: Methods added to every comparison.
BASELINES = ("scalarisation", "scalarisation-adam")


def with_baselines(methods: Sequence[str]) -> tuple[str, ...]:
    """Return the methods without duplicates, followed by the scalarisation baselines that are missing.

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
    """Run one method with one seed, and return its summary. Under torchrun, all processes share one run.

    Args:
        experiment: the experiment.
        method: a name in ``METHODS``.
        settings: the experiment's settings, possibly changed.
        seed: seed of the initialization, the batches and all other random numbers.
        out: the run directory.
        resume: continue an existing run, or start a new one; a complete run is not repeated.
        data: the data folder.
        progress: display of the run.
        checkpoint_every: steps between two checkpoints; default a tenth of the steps, at most 1000, or 25 if the
            number of steps is not limited.
        workers, on_nonfinite: as for ``fit``.

    Raises:
        InvalidOption: the method does not support its step size.
        RunError: the directory is in use, already holds a run, or holds another or a damaged run.
        Interrupted: a signal was received; the run can be resumed.
    """
    settings.for_method(method)  # raises before the directory is created
    training = Training(experiment, method, settings, seed, out, checkpoint_every, workers, on_nonfinite)
    group = find_group(None, shard=False)
    with ExitStack() as held:

        def open_run() -> dict[str, Any] | None:
            held.enter_context(RunLock(out))
            return _summary_in(out, training.asked(), resume)

        complete: dict[str, Any] | None = group.broadcast(open_run)  # only the first process opens the directory
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


def _summary_in(out: Path, asked: Mapping[str, Any], resume: bool) -> dict[str, Any] | None:
    """Check a locked directory, and return the summary of the complete run in it, or None."""
    kept = open_folder(out, asked, resume)
    if kept is None:
        return None
    check_fields(out / SETTINGS, settings_problem(kept))
    summary = read_json(out / SUMMARY)
    if summary is not None:
        check_fields(out / SUMMARY, summary_problem(summary))
        remove_leftovers(out)  # otherwise ``fit`` removes them, once it has accepted the checkpoints
    return summary


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
    """Run several methods and seeds, each in its directory below ``out``, and return the summaries, seed by seed.

    A diverged run does not stop the comparison; its summary records the divergence.

    Raises:
        InvalidOption: as for ``run_one``, before the first run starts.
        RunError: as for ``run_one``; without ``resume``, an existing run is refused before the first run starts.
        Interrupted: a signal was received; the comparison can be resumed.
    """
    for method in methods:
        settings.for_method(method)  # raises before the first run
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
    """Run a study in its directory, store every finished cell, and return its report.

    Raises:
        RunError: the directory is in use, already holds a study, or holds another or a damaged one.
    """
    asked = {"study": study.name, "seeds": seeds, "settings": dict(settings)}
    with RunLock(out):
        if open_folder(out, asked, resume) is None:
            write_json(out / SETTINGS, describe({**asked, "title": study.title, "claim": study.claim}))
        complete = read_json(out / STUDY)
        if complete is not None:
            check_fields(out / STUDY, study_problem(complete))
        remove_leftovers(out)
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
        changed = {"verdict": "not conclusive"} if _remarks(study, settings) else {}
        report: dict[str, Any] = plain({**about, **found, "findings": remarks, **changed, "versions": versions()})
        write_json(out / STUDY, report)
    return report


def _remarks(study: Study, settings: Mapping[str, Any]) -> list[str]:
    """Return a remark if the settings differ from the study's own; the data folder does not count."""
    changed = [name for name in settings if name != "data" and settings[name] != study.settings.get(name)]
    if not changed:
        return []
    return [
        f"Run with settings that differ from the study's own ({', '.join(changed)}): the verdict is not conclusive."
    ]
