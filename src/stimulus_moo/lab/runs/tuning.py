"""Grid search for learning rates."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from stimulus_moo import NonFiniteError, fit
from stimulus_moo.lab.experiment import Experiment, ExperimentSettings
from stimulus_moo.lab.runs.decay import decay_of

#: Default grid; it is extended by factors of about 3 if the best value is at an edge.
GRID = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
_EXTENSIONS = 3


@dataclass(frozen=True)
class Tuned:
    """Result for one method: the mean final training loss, over tasks and seeds, for each learning rate."""

    method: str
    scores: dict[float, float]

    @property
    def best(self) -> float:
        """The learning rate with the lowest loss."""
        return min(self.scores, key=lambda lr: self.scores[lr])


def tune(
    experiment: Experiment,
    method: str,
    settings: ExperimentSettings,
    *,
    seeds: Sequence[int] = (100, 101),
    grid: Sequence[float] = GRID,
    data: Path | None = None,
    report: Callable[[str], None] = lambda _: None,
) -> Tuned:
    """Try every learning rate of the grid with the experiment's own budget.

    The default seeds are not used by comparisons, so that tuning and evaluation use different seeds. A diverged run has
    an infinite loss.

    Args:
        experiment: the experiment.
        method: a name in ``METHODS``.
        settings: as for the comparison.
        seeds: seeds to average over.
        grid: learning rates in rising order.
        data: the data folder, or None.
        report: called with one line per learning rate.
    """
    scores: dict[float, float] = {}

    def score(lr: float) -> None:
        scores[lr] = fmean(_final_loss(experiment, method, settings, lr, seed, data) for seed in seeds)
        report(f"{method} lr={lr:g}: mean loss {scores[lr]:.4g}")

    for lr in grid:
        score(lr)
    for _ in range(_EXTENSIONS):
        rising = sorted(scores)
        best = min(rising, key=lambda lr: scores[lr])
        if best not in (rising[0], rising[-1]) or not math.isfinite(scores[best]):
            break
        score(float(f"{best * (1 / 3 if best == rising[0] else 3):.1g}"))
    return Tuned(method, scores)


def _final_loss(
    experiment: Experiment, method: str, settings: ExperimentSettings, lr: float, seed: int, data: Path | None
) -> float:
    problem = experiment.build(settings, seed, data)
    chosen = {**settings.for_method(method), "lr": lr, "evaluate_every": None, "callbacks": decay_of(settings, lr)}
    try:
        result = fit(problem.model, problem.losses, problem.data, shared=problem.shared, seed=seed, **chosen)
    except NonFiniteError:
        return math.inf
    return fmean(result.losses) if all(map(math.isfinite, result.losses)) else math.inf
