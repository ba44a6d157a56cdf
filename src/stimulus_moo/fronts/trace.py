"""Trace a Pareto front: the ends first, then points in the largest gaps, each from its neighbours' models."""

from __future__ import annotations

import copy
import logging
import math
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stimulus_moo import Fixed, InvalidOption, Ray, Result, fit
from stimulus_moo.fronts import files
from stimulus_moo.fronts.evaluation import disturbed, mean_losses, mean_state
from stimulus_moo.fronts.front import Front, FrontPoint
from stimulus_moo.fronts.placing import Place, Trial, next_places, through
from stimulus_moo.options import positive_integer

logger = logging.getLogger("stimulus_moo")

METHOD = "stimulus-m"  # full anchors: the losses and rows of a point are exact at its end
OTHERS = 0.01  # weight of the other losses in the first part of an end, against flat directions
SLACK, FAR = 0.01, 0.1  # of what a loss has fallen to its least value: what an end gives back for the others, at most
SHARE = 4  # a point that starts from its neighbours takes this fraction of the steps of one from scratch
NOISE = 0.1  # added to a start, in units of the neighbours' distance, so that saddle points between them are left

State = dict[str, Tensor]


def pareto_front(
    model: torch.nn.Module,
    losses: Callable[[Any, Any], Any],
    dataset: Any,
    *,
    points: int = 11,
    steps: int = 1000,
    folder: str | Path | None = None,
    names: Sequence[str] | None = None,
    workers: int = 1,
    progress: bool | None = None,
    **options: Any,
) -> Front:
    """Train the models of a Pareto front, of any shape and for any number of losses.

    The ends come first: for every objective a run from ``model`` that minimises this loss plus 1% of the others, and
    then the others while it stays within 1% of what it has fallen. Then each point is placed on a ray from the least
    values of all losses through the largest gap of the front so far, and trained with ``Ray``. It starts from one of
    its S neighbours or from the mean of their parameters, whichever has the least value of what is minimised, and takes
    a quarter of the steps. All runs use the method ``"stimulus-m"``: recursive gradients with full anchors end on the
    front, where those of mini-batches end at a distance that their noise determines. For two losses, 11 points take
    less than 4 times the passes of a run with ``Ray`` from scratch. Losses should be of comparable units.

    Args:
        model: a ``torch.nn.Module``; it is not changed.
        losses, dataset: as for ``fit``; the data set must have a length.
        points: the number of points, at least the number of losses; the front has fewer if no gap is left to fill.
        steps: steps of a run from scratch.
        folder: every finished point is saved there. If the folder has points of the same settings, the front
            continues from them: an interrupted call loses the point under way at most.
        names: names of the objectives, for plots.
        workers: number of processes that train points at the same time; model, losses and data must be picklable then.
        progress: print a line per point; None: if standard error is a terminal.
        options: further arguments of ``fit``: batch_size, lr, counts, collate_fn, anchor_batch, seed, ...

    Raises:
        InvalidOption: an argument is invalid.
        StateMismatch: the folder has a front with other settings.

    >>> import torch
    >>> from stimulus_moo.fronts import pareto_front
    >>> _ = torch.manual_seed(0)
    >>> x = torch.randn(64, 3)
    >>> y = torch.stack([x[:, 0], -x[:, 0] + x[:, 1]], dim=1)
    >>> def losses(model, batch):
    ...     return (model(batch[0]) - batch[1]).square().mean(0)
    >>> front = pareto_front(torch.nn.Linear(3, 1), losses, (x, y), points=4, steps=60)
    >>> len(front), bool(front.nondominated.all())
    (4, True)
    """
    wanted, steps = positive_integer("points", points), positive_integer("steps", steps)
    job = Job(model, losses, dataset, steps, options)
    start = job.value(model.state_dict())
    if wanted < len(start):
        raise InvalidOption(f"points must be at least the number of losses, {len(start)}, found {points}")
    settings = {"steps": steps, "losses": len(start), **{k: repr(v) for k, v in options.items() if _plain(v)}}
    place = None if folder is None else Path(folder)
    found = [] if place is None else files.resume(place, settings)
    trace = Trace(job, start, found, names, place, settings, _teller(wanted, progress))
    with _pool(positive_integer("workers", workers)) as run:
        while len(trace.points) < wanted and (targets := trace.targets(min(workers, wanted - len(trace.points)))):
            run(trace, targets)
    front = Front(trace.points, copy.deepcopy(model), names)
    if place is not None:
        front.save(place)
    return front


class Job:
    """What all points have in common; other processes get a copy."""

    def __init__(self, model: torch.nn.Module, losses: Any, dataset: Any, steps: int, options: dict[str, Any]) -> None:
        taken = {"weighting", "method", "preference", "bounds", "callbacks", "checkpoint", "resume"} & set(options)
        if taken:
            raise InvalidOption(f"{sorted(taken)[0]} cannot be given to pareto_front, which sets it for every point")
        self.model, self.losses, self.dataset, self.steps, self.options = model, losses, dataset, steps, options

    def value(self, state: State) -> list[float]:
        """Return the losses of a state over the whole data set, without derivatives."""
        model = copy.deepcopy(self.model)
        model.load_state_dict(state)
        return mean_losses(model, self.losses, self.dataset, self.options)

    def train(self, number: int, target: dict[str, Any], starts: Sequence[State]) -> FrontPoint:
        """Train one point, from the best of the states."""
        model = copy.deepcopy(self.model)
        if "end" in target:
            model.load_state_dict(starts[0])
            result, passes = self._train_end(model, target["end"], target["worst"])
        else:
            r, z = np.array(target["preference"]), np.array(target["reference"])
            start = min(starts, key=lambda state: float((r * (np.array(self.value(state)) - z)).max()))
            model.load_state_dict(disturbed(start, starts[0], starts[-2], NOISE, number))
            result = self._fit(model, math.ceil(self.steps / SHARE), weighting=Ray(r.tolist(), z.tolist()))
            passes = result.passes
        weights = np.array(result.history.last()["weights"])
        state = {name: value.detach().clone() for name, value in model.state_dict().items()}
        shares = (weights / weights.sum()).tolist()
        return FrontPoint(number, result.losses, shares, result.stationarity, passes, target, state)

    def _train_end(self, model: torch.nn.Module, s: int, worst: Sequence[float]) -> tuple[Result, int]:
        """Minimise one loss, then the others while it stays close to its least value; return the result and passes.

        If it does not stay there, as next to a kink of another loss, the second part is undone.
        """
        half = math.ceil(self.steps / 2)
        alone = self._fit(model, half, weighting=Fixed([1.0 if k == s else OTHERS for k in range(len(worst))]))
        state, least = copy.deepcopy(model.state_dict()), alone.losses[s]
        fall = max(worst[s] - least, 0.0)
        both = self._fit(model, self.steps - half or 1, bounds={s: least + SLACK * fall})
        passes = alone.passes + both.passes
        if both.losses[s] <= least + FAR * fall:
            return both, passes
        model.load_state_dict(state)
        return alone, passes

    def _fit(self, model: torch.nn.Module, steps: int, **target: Any) -> Result:
        fixed: Any = {"method": METHOD, "steps": steps, "progress": False, **target}
        return fit(model, self.losses, self.dataset, **fixed, **self.options)


class Trace:
    """The points so far, and what comes next."""

    def __init__(
        self,
        job: Job,
        start: list[float],
        points: list[FrontPoint],
        names: Sequence[str] | None,
        folder: Path | None,
        settings: dict[str, Any],
        tell: Callable[[FrontPoint], None],
    ) -> None:
        self.job, self.start, self.points, self._names = job, start, points, names
        self._folder, self._settings, self._tell = folder, settings, tell

    def targets(self, count: int) -> list[tuple[int, dict[str, Any], list[State]]]:
        """Return the numbers, targets and starts of the next points, ``count`` at most; none if no gap is left."""
        done = {point.target["end"] for point in self.points if "end" in point.target}
        ends = [s for s in range(len(self.start)) if s not in done]
        first = len(self.points)
        if ends:
            begin = self.job.model.state_dict()
            return [(first + k, self._end(s), [begin]) for k, s in enumerate(ends[:count])]
        losses = np.array([point.losses for point in self.points])
        rays = [point for point in self.points if "end" not in point.target]
        places = next_places(losses, [_trial(point) for point in rays], count)
        return [(first + k, _ray(place), self._starts(place)) for k, place in enumerate(places)]

    def add(self, point: FrontPoint) -> None:
        """Keep a finished point, also in the folder."""
        self.points.append(point)
        if self._folder is not None:
            files.add(self._folder, self.points, self._names, self._settings)
        self._tell(point)

    def _end(self, s: int) -> dict[str, Any]:
        known = np.array([self.start, *(point.losses for point in self.points)])
        return {"end": s, "worst": known.max(0).tolist()}

    def _starts(self, place: Place) -> list[State]:
        """Return the models of the neighbours and the mean of their parameters."""
        states = [self.points[k].state for k in place.neighbours]
        return [*states, mean_state(states)]


def _ray(place: Place) -> dict[str, Any]:
    return {"preference": place.preference, "reference": place.reference, "neighbours": list(place.neighbours)}


def _trial(point: FrontPoint) -> Trial:
    on_ray = through(point.target["preference"], point.target["reference"])
    return Trial(point.number, tuple(point.target["neighbours"]), on_ray)


class _pool:
    """Runs points in this process, or in several at the same time."""

    def __init__(self, workers: int) -> None:
        self._executor = ProcessPoolExecutor(workers, get_context("spawn")) if workers > 1 else None

    def __enter__(self) -> Callable[[Trace, Sequence[Any]], None]:
        return self._run

    def __exit__(self, *error: object) -> None:
        if self._executor is not None:
            self._executor.shutdown(cancel_futures=True)

    def _run(self, trace: Trace, targets: Sequence[Any]) -> None:
        if self._executor is None:
            for target in targets:
                trace.add(trace.job.train(*target))
            return
        for future in [self._executor.submit(trace.job.train, *target) for target in targets]:
            trace.add(future.result())


def _plain(value: Any) -> bool:
    return isinstance(value, bool | int | float | str | None)


def _teller(wanted: int, progress: bool | None) -> Callable[[FrontPoint], None]:
    show = sys.stderr.isatty() if progress is None else progress

    def tell(point: FrontPoint) -> None:
        values = " ".join(f"{loss:.4g}" for loss in point.losses)
        line = f"point {point.number + 1} of {wanted}: losses {values}, {point.passes} passes"
        logger.info(line)
        if show:
            print(line, file=sys.stderr, flush=True)

    return tell
