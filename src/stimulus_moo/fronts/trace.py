"""Trace a Pareto front: the ends, the centre, then points in the largest gaps, each from its neighbours' models."""

from __future__ import annotations

import copy
import logging
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch

from stimulus_moo import InvalidOption
from stimulus_moo.fronts import files
from stimulus_moo.fronts.evaluation import disturbed, mean_state, moved_state
from stimulus_moo.fronts.front import FloatArray, Front, FrontPoint
from stimulus_moo.fronts.job import Job, State
from stimulus_moo.fronts.placing import Place, best, distinct, next_places, positive, value
from stimulus_moo.options import positive_integer

logger = logging.getLogger("stimulus_moo")

FAR = 0.1  # an end is trained again where its loss is smaller by this share of the front's range
MORE = 6  # two losses: one run more for so many points, for gaps of the front and local optima; else thrice as many
LINE = [k / 10 for k in (*range(-9, 0), *range(1, 11))]  # where to look for a better end, from the end to another
BETWEEN = [k / 3 for k in range(-3, 4)]  # where to look for a start, from a neighbour past the mean of all
SUM = 0.1  # weight of the losses' sum, in units of their ranges, in comparing starts; without it neighbours are equal
NOISE = 0.1  # added to a start, in units of the neighbours' distance, so that saddle points between them are left


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
    then the others while it stays within 0.3% of what it has fallen; where it does not, as next to a kink of another
    loss, the second part is undone. Then comes the centre: with ``Ray``, a point in the middle between the ends. It is
    trained from ``model`` with 0.6 of the steps and from the models of the ends, and the better one is taken. Each
    further point is placed on a ray through the largest gap of the front so far (three and more losses: where it is
    expected to add most hypervolume). It starts from the best of seven models on the line between its neighbours'
    parameters and takes a tenth of the steps, with two passes over all data at least; with three and more losses, it is
    trained from the best known point if nothing is found, and if the ray misses the front, all losses are decreased. An
    end is trained again where a smaller loss is found later. A run that another point dominates or equals is left out,
    and another place is tried, up to 7 runs for 6 points (18 for three and more losses).

    Runs from ``model`` begin with ``"stimulus-adam"``; those from trained models use ``"stimulus-m"``, whose steps
    shrink with the gradient. Both have recursive gradients with full anchors and end on the front, where those of
    mini-batches end at a distance that their noise determines. For two losses, 11 points take at most about 4 times the
    passes of a run with ``Ray`` from scratch. Losses should be of comparable units.

    Args:
        model: a ``torch.nn.Module``; it is not changed.
        losses, dataset: as for ``fit``; the data set must have a length.
        points: the number of points, at least the number of losses; the front has fewer if there are no more.
        steps: steps of a run from scratch.
        folder: every finished point is saved there. If the folder has points of the same settings, the front
            continues from them: an interrupted call loses the point under way at most.
        names: names of the objectives, for plots.
        workers: number of processes that train points at the same time; model, losses and data must be picklable then.
        progress: print a line per run; None: if standard error is a terminal.
        options: further arguments of ``fit``: batch_size, lr, counts, collate_fn, anchor_batch, seed, ...

    Raises:
        InvalidOption: an argument is invalid.
        StateMismatch: the folder has a front with other settings.
        MissingDependency: for three and more losses, moocore is not installed.

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
    settings = {
        "steps": steps,
        "losses": len(start),
        **{k: repr(v) for k, v in options.items() if _plain(v)},
    }
    place, tell = None if folder is None else Path(folder), _teller(wanted, progress)

    def write(kept: Sequence[FrontPoint], left_out: Sequence[FrontPoint]) -> None:
        if place is not None:
            files.write(place, kept, left_out, names, settings)
        tell(kept, left_out)

    trace = Trace(job, start, [] if place is None else files.resume(place, settings), wanted, write)
    with _pool(positive_integer("workers", workers)) as run:
        while targets := trace.targets(workers):
            run(trace, targets)
    kept = _chosen(trace.points, wanted)
    left_out = [replace(one, state={}) for one in trace.runs if one.number not in {point.number for point in kept}]
    front = Front(kept, copy.deepcopy(model), names, left_out)
    if place is not None:
        front.save(place)
    return front


class Trace:
    """The runs so far, which of them are points of the front, and what comes next."""

    def __init__(
        self,
        job: Job,
        start: list[float],
        runs: list[FrontPoint],
        wanted: int,
        write: Callable[[Sequence[FrontPoint], Sequence[FrontPoint]], None],
    ) -> None:
        self.job, self.start, self.runs, self.wanted, self._write = job, start, runs, wanted, write
        self._looked: set[tuple[int, int, int]] = set()

    def targets(self, count: int) -> list[tuple[int, dict[str, Any], list[State]]]:
        """Return the numbers, targets and starts of the next runs, ``count`` at most; none at the end."""
        first, runs = len(self.runs), self.wanted + (self.wanted // MORE if len(self.start) == 2 else 2 * self.wanted)
        count = min(count, runs - first)
        ends = self._ends()[:count]
        if ends:
            return [(first + k, *end) for k, end in enumerate(ends)]
        points, three = self.points, len(self.start) > 2
        if not three:
            count = min(count, self.wanted - len(points))
        elif len(points) >= self.wanted:  # a better point takes the place of the one that adds least
            points = _chosen(points, self.wanted - 1)
        if count <= 0:
            return []
        tried = [(run.target["preference"], run.target["reference"]) for run in self.runs if "end" not in run.target]
        places = next_places(_losses(points), tried, count if tried else 1, self.start)
        return [(first + k, *self._ray(place, points, first + k)) for k, place in enumerate(places)]

    @property
    def points(self) -> list[FrontPoint]:
        """The runs that are points of the front: those that have kept their states."""
        return [run for run in self.runs if run.state]

    def add(self, run: FrontPoint) -> None:
        """Keep a finished run; those that are not on the front lose their states."""
        self.runs.append(run)
        points = self.points
        on_front = {points[k].number for k in distinct(_losses(points), self.wanted)}
        self.runs = [one if one.number in on_front else replace(one, state={}) for one in self.runs]
        self._write(self.points, [one for one in self.runs if not one.state])

    def _ends(self) -> list[tuple[dict[str, Any], list[State]]]:
        """Return the ends to train: those without a run; after a ray those where a smaller loss was found elsewhere."""
        points = self.points
        worst = np.array([self.start, *(point.losses for point in points)]).max(0).tolist()
        own = {s: [run.losses[s] for run in self.runs if run.target.get("end") == s] for s in range(len(self.start))}
        missing = [s for s, found in own.items() if not found]
        if missing:
            begin = self.job.model.state_dict()
            return [({"end": s, "worst": worst, "from": None}, [begin]) for s in missing]
        if "end" in self.runs[-1].target:
            return []
        found, span = [], np.ptp(_losses(points), axis=0)
        for s in own:
            lowest = min(points, key=lambda point: point.losses[s])
            state: State | None = lowest.state
            if any(run.target.get("end") == s and run.target["from"] == lowest.number for run in self.runs):
                continue
            if lowest.losses[s] >= min(own[s]) - FAR * span[s]:
                state = self._look_around(
                    lowest, max(points, key=lambda point: point.losses[s]), s, FAR * float(span[s])
                )
            if state is not None:
                found.append(({"end": s, "worst": worst, "from": lowest.number}, [state]))
        return found

    def _look_around(self, end: FrontPoint, other: FrontPoint, s: int, least: float) -> State | None:
        """Return a state on the line through the parameters of two points where a loss is smaller, if there is one.

        Where a loss has several local minima, a better one than the end's may be there. Looked at once per line.
        """
        line = (s, end.number, other.number)
        if line in self._looked:
            return None
        self._looked.add(line)
        states = [moved_state(end.state, other.state, share) for share in LINE]
        values = [self.job.value(state, few=True)[s] for state in states]
        best = int(np.argmin(values))
        return states[best] if values[best] < self.job.value(end.state, few=True)[s] - least else None

    def _ray(self, place: Place, points: Sequence[FrontPoint], number: int) -> tuple[dict[str, Any], list[State]]:
        """Return the target of a place and its starts: the best model between its neighbours, the best known point.

        The first ray begins from scratch, too: where each end has trained a part of the model only, nothing between
        them is good.
        """
        ray, losses, neighbours = (place.preference, place.reference), _losses(points), list(place.neighbours)
        values, near = value(losses, *ray), [points[k].state for k in neighbours]
        between = [moved_state(mean_state(near), near[0], share) for share in BETWEEN]
        tried = np.array([self.job.value(state, few=True) for state in between])
        cost = value(tried, *ray) / positive((ray[0] * np.ptp(losses[neighbours], axis=0)).max())
        cost += SUM * (tried / positive(np.ptp(losses, axis=0))).sum(1)
        starts, known = [between[int(np.argmin(cost))], points[int(values.argmin())].state], float(values.min())
        used = starts if len(self.start) > 2 else starts[:1]
        used = [disturbed(start, near[0], near[-1], NOISE, number) for start in used]
        fresh = all("end" in run.target for run in self.runs)
        target = {"preference": place.preference, "reference": place.reference, "known": known, "fresh": fresh}
        return target, [self.job.model.state_dict(), *used] if fresh else used


def _losses(points: Sequence[FrontPoint]) -> FloatArray:
    return np.array([point.losses for point in points])


def _chosen(points: Sequence[FrontPoint], count: int) -> list[FrontPoint]:
    return [points[k] for k in best(_losses(points), count)]


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


def _teller(wanted: int, progress: bool | None) -> Callable[[Sequence[FrontPoint], Sequence[FrontPoint]], None]:
    show = sys.stderr.isatty() if progress is None else progress

    def tell(kept: Sequence[FrontPoint], left_out: Sequence[FrontPoint]) -> None:
        last = max((*kept, *left_out), key=lambda run: run.number)
        values = " ".join(f"{loss:.4g}" for loss in last.losses)
        line = f"run {last.number + 1}: losses {values}, {last.passes} passes; {len(kept)} of {wanted} points"
        logger.info(line)
        if show:
            print(line, file=sys.stderr, flush=True)

    return tell
