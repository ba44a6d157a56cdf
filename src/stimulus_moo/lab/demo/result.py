"""What was measured on one problem of the demo: ends of all methods, gradients at the start and at the best end."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from stimulus_moo import measure
from stimulus_moo.diagnosis.gradients import Look, look
from stimulus_moo.lab.demo.problems import NAMES, Comparison
from stimulus_moo.lab.experiment import Experiment
from stimulus_moo.lab.report.groups import Entry, Group, group_runs
from stimulus_moo.lab.report.scores import Score, final_losses, iterations
from stimulus_moo.lab.runs import RecordedRun
from stimulus_moo.training import checkpoint


@dataclass(frozen=True)
class Result:
    """The runs on one problem, and what explains them.

    Attributes:
        comparison: the problem.
        group: the runs; entries have the names of ``NAMES``, the best comes first.
        left: for each entry the worst of its losses at the end, each divided by its value at the start; None for a
            method that diverged.
        start, end: gradients before the training, and at the end of the best method's first seed.
    """

    comparison: Comparison
    group: Group
    left: tuple[Score | None, ...]
    start: Look
    end: Look

    @property
    def ranked(self) -> list[tuple[Entry, Score]]:
        """The entries that did not diverge, the best first."""
        return [(e, score) for e, score in zip(self.group.entries, self.left, strict=True) if score is not None]

    @property
    def scales(self) -> tuple[float, int, int]:
        """Ratio of the longest gradient to the shortest one at the start, and which losses these are."""
        sizes = np.array(self.start.signal)
        return float(sizes.max() / sizes.min()), int(sizes.argmax()), int(sizes.argmin())

    @property
    def noise_left(self) -> float:
        """Noise of a batch's gradient at the end, relative to the start."""
        return float(np.linalg.norm(self.end.noise) / np.linalg.norm(self.start.noise))


def result_of(comparison: Comparison, experiment: Experiment, runs: Sequence[RecordedRun]) -> Result:
    """Evaluate the runs of one problem. The best method's model is read from its checkpoint."""
    (group,) = group_runs(runs)
    settings = comparison.settings(experiment)
    with torch.random.fork_rng(devices=[]):  # ``build`` sets the seed
        problems = {seed: experiment.build(settings, seed, None) for seed in group.seeds}
    first = problems[group.seeds[0]]
    batches = _batches(first.data, settings.batch_size)
    starts = {seed: measure(one.model, one.losses, batches).losses for seed, one in problems.items()}
    scored = [(replace(entry, name=NAMES.get(entry.method, "")), _left(entry, starts)) for entry in group.entries]
    scored.sort(key=lambda pair: math.inf if pair[1] is None else pair[1].mean)
    entries, left = zip(*scored, strict=True)
    start, model = look(first.model, first.losses, batches), first.model
    state = checkpoint.load(entries[0].runs[0].folder)
    assert state is not None  # a complete run has one
    model.load_state_dict(state["model"])
    return Result(comparison, replace(group, entries=entries), left, start, look(model, first.losses, batches))


def steps_of(entry: Entry) -> float:
    """Return the mean number of steps."""
    found = iterations(entry)
    return found.mean if found else 0.0


def _left(entry: Entry, starts: dict[int, list[float]]) -> Score | None:
    if entry.diverged:
        return None
    return Score.of(max(np.divide(final_losses(run)[:-2], starts[run.seed])) for run in entry.runs)


def _batches(data: Any, size: int) -> list[Any]:
    return [tuple(column[at : at + size] for column in data) for at in range(0, len(data[0]), size)]
