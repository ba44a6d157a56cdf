"""One run of an experiment: training with ``fit``, and its summary."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from stimulus_moo import NonFiniteError, Progress, fit
from stimulus_moo.lab.experiment import Experiment, ExperimentSettings
from stimulus_moo.lab.methods import LAB_METHODS
from stimulus_moo.lab.problem import Problem
from stimulus_moo.lab.runs.decay import decay_of
from stimulus_moo.lab.runs.directory import SETTINGS, SUMMARY, check_same, describe
from stimulus_moo.lab.runs.interrupts import Interrupted, Stop, deferred
from stimulus_moo.lab.runs.recorder import Bystander, Recorder
from stimulus_moo.lab.runs.storage import plain, read_json, write_json
from stimulus_moo.lab.runs.torchrun import is_first

if TYPE_CHECKING:
    from stimulus_moo.lab.runs.watch import Watch


@dataclass(frozen=True)
class Training:
    """Definition of a run: experiment, method, settings, seed and directory.

    ``checkpoint_every``, ``workers`` and ``on_nonfinite`` may change when the run is resumed.
    """

    experiment: Experiment
    method: str
    settings: ExperimentSettings
    seed: int
    out: Path
    checkpoint_every: int | None = None
    workers: int = 0
    on_nonfinite: str = "raise"

    def asked(self) -> dict[str, Any]:
        """Return the settings that identify the run; a directory can only be resumed with the same ones."""
        settings = {field.name: getattr(self.settings, field.name) for field in fields(self.settings)}
        return {"experiment": self.experiment.name, "method": self.method, "seed": self.seed, **plain(settings)}

    @property
    def every(self) -> int:
        """Steps between two checkpoints."""
        if self.checkpoint_every is not None:
            return self.checkpoint_every
        return 25 if self.settings.steps is None else min(1000, -(-self.settings.steps // 10))

    def run(self, problem: Problem, resume: bool, progress: Watch | None) -> dict[str, Any]:
        """Train, store the results in the directory, and return the summary.

        Raises:
            Interrupted: a signal was received.
        """
        found = _facts(problem)
        kept = read_json(self.out / SETTINGS)
        if kept is not None:
            check_same(self.out, kept, found)
        torch.optim.SGD(
            [torch.zeros(1)], lr=1.0
        )  # the first optimizer imports torch's compiler; keep that out of the measured time
        about = {"title": self.experiment.title, "claim": self.experiment.claim}
        first = is_first()
        kind = Recorder if first else Bystander
        recorder = kind(self.out, describe({**self.asked(), **about, **found}), self.every)
        total = None if self._limit is None else getattr(self.settings, self._limit)
        if progress is not None:
            progress.begin(f"{LAB_METHODS[self.method].title}, seed {self.seed}", total)
        with deferred(lambda: _say_stopping(progress)) as stop:
            try:
                ended = self._fit(problem, recorder, stop, resume, progress)
            finally:
                recorder.close()
            summary: dict[str, Any] = plain(
                {
                    "experiment": self.experiment.name,
                    "method": self.method,
                    "seed": self.seed,
                    **ended,
                    "lr": self.settings.for_method(self.method)["lr"],  # as requested
                    **found,
                }
            )
            if first:
                write_json(self.out / SUMMARY, summary)
            if progress is not None:
                progress.finished(summary)
            stop.check()
        return summary

    def _fit(
        self, problem: Problem, recorder: Recorder, stop: Stop, resume: bool, progress: Watch | None
    ) -> dict[str, Any]:
        """Return the fields of the summary that describe the end of the run."""

        def show(told: Progress) -> bool:
            if progress is not None:
                done = told.step if self._limit in (None, "steps") else told.record[self._limit]
                progress.show(done, told.record["losses"])
            return stop.number is not None

        options = self.settings.for_method(self.method)
        try:
            result = fit(
                problem.model,
                problem.losses,
                problem.data,
                shared=problem.shared,
                seed=self.seed,
                callbacks=[recorder, show, *decay_of(self.settings, options["lr"])],
                progress=False,
                checkpoint=self.out,
                checkpoint_every=self.every,
                resume=resume,
                workers=self.workers,
                on_nonfinite=self.on_nonfinite,
                **options,
            )
        except NonFiniteError as error:
            last = recorder.diverge()
            steps = last["step"] + 1 if last else 0
            return {
                "seconds": 0.0,
                **last,
                "steps": steps,
                "stopped": "diverged",
                "diverged": True,
                "error": str(error),
            }
        if result.stopped == "callback":
            recorder.pause()
            raise Interrupted(stop.number or signal.SIGTERM)  # the signal may have reached another process
        return {
            **recorder.finish(result.history, self.settings.evaluate_every),
            "steps": result.steps,
            "full_losses": result.losses or None,  # None: no finite value was measured
            "stationarity": result.stationarity,
            "stopped": result.stopped,
            "skipped": result.skipped,
            "alone": result.alone,
            "shortened": result.shortened,
            "taken_back": result.taken_back,
            "seconds": result.seconds,
            "test": problem.test(problem.model) if problem.test and is_first() else {},
            "diverged": False,
        }

    @property
    def _limit(self) -> str | None:
        """The limit that the progress bar shows."""
        return next(
            (name for name in ("steps", "gradients", "passes", "seconds") if getattr(self.settings, name)), None
        )


def _facts(problem: Problem) -> dict[str, Any]:
    """Return the facts about a problem's data that ``settings.json`` and ``summary.json`` store."""
    return {
        "data": problem.source,
        "synthetic": problem.synthetic,
        "tasks": list(problem.tasks),
        "n_train": _size(problem.data),
    }


def _size(data: Any) -> int:
    """Return the number of training samples, of tensors or of any data set with a length."""
    if isinstance(data, Mapping):
        return _size(next(iter(data.values())))
    return _size(data[0]) if isinstance(data, tuple | list) else len(data)


def _say_stopping(progress: Watch | None) -> None:
    if progress is not None:
        progress.say("stopping after this step; a second signal stops immediately")
