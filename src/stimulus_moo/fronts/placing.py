"""Where the next points of a front are placed: on rays through the largest gaps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]

LEAST = 0.01  # smallest entry of a direction in three and more dimensions: rays along an axis have r = infinity
NEAR = 0.1  # a new point closer to an end of its gap than this share of the gap has found nothing in it


@dataclass(frozen=True)
class Place:
    """A ray and the points next to it."""

    preference: list[float]
    reference: list[float]
    neighbours: tuple[int, ...]


@dataclass(frozen=True)
class Trial:
    """A place that was tried: the point that came of it, its neighbours then, and a point on its ray."""

    number: int
    neighbours: tuple[int, ...]
    on_ray: FloatArray


def next_places(losses: FloatArray, trials: Sequence[Trial], count: int) -> list[Place]:
    """Return up to ``count`` places for new points.

    With two losses, they are the middles of the largest gaps between neighbours on the front, in units of the range of
    each loss. A gap in which nothing was found is not tried again. With more losses, they are the directions of a
    regular lattice that are farthest from those of the points and of the places tried before.

    Args:
        losses: points x S, of the points so far.
        trials: the places tried before.
        count: how many.
    """
    ideal = losses.min(0)
    scale = np.ptp(losses, axis=0)
    scale = np.where(scale > 0.0, scale, 1.0)
    points = (losses - ideal) / scale
    if losses.shape[1] == 2:
        middles = _gaps(points, trials)[:count]
    else:
        middles = _directions(points, [(trial.on_ray - ideal) / scale for trial in trials], count)
    found = []
    for middle, neighbours in middles:
        r = 1.0 / (scale * np.maximum(middle, 1e-9))
        found.append(Place((r / r.max()).tolist(), ideal.tolist(), neighbours))
    return found


def through(preference: Sequence[float], reference: Sequence[float]) -> FloatArray:
    """Return a point on a ray."""
    return np.asarray(np.array(reference) + 1.0 / np.array(preference))


def _gaps(points: FloatArray, trials: Sequence[Trial]) -> list[tuple[FloatArray, tuple[int, ...]]]:
    """Return the middles and ends of the gaps that are open, the largest first."""
    closed = _closed(points, trials)
    pairs = [pair for pair in pairwise(_along_front(points)) if frozenset(pair) not in closed]
    pairs.sort(key=lambda pair: -float(np.linalg.norm(points[pair[0]] - points[pair[1]])))
    return [((points[a] + points[b]) / 2.0, (a, b)) for a, b in pairs]


def _closed(points: FloatArray, trials: Sequence[Trial]) -> set[frozenset[int]]:
    """Return the pairs of neighbours between which nothing was found: the point of the trial is not between them."""
    closed = set()
    for trial in trials:
        closed.add(frozenset(trial.neighbours))
        for near, far in (trial.neighbours, trial.neighbours[::-1]):
            gap = float(np.linalg.norm(points[near] - points[far]))
            if float(np.linalg.norm(points[trial.number] - points[near])) < NEAR * gap:
                closed.add(frozenset((trial.number, far)))
    return closed


def _along_front(points: FloatArray) -> list[int]:
    """Return the nondominated points in the order of the first loss."""
    order, lowest = [], np.inf
    for k in np.lexsort((points[:, 1], points[:, 0])):
        if points[k, 1] < lowest:
            order.append(int(k))
            lowest = float(points[k, 1])
    return order


def _directions(points: FloatArray, used: Sequence[FloatArray], count: int) -> list[tuple[FloatArray, tuple[int, ...]]]:
    """Return the directions of the lattice that are farthest from all others, with the points around each."""
    own = _normalised(points)
    known, candidates, found = [*own, *map(_normalised, used)], _lattice(points.shape[1]), []
    for _ in range(count):
        apart = np.linalg.norm(candidates[:, None] - np.array(known)[None], axis=2).min(1)
        chosen = candidates[int(apart.argmax())]
        known.append(chosen)
        found.append((np.maximum(chosen, LEAST), _around(chosen, own)))
    return found


def _around(direction: FloatArray, own: FloatArray) -> tuple[int, ...]:
    """Return the S points nearest to a direction, leaving out those close to nearer ones."""
    found: list[int] = []
    for k in np.argsort(np.linalg.norm(own - direction, axis=1)).tolist():
        if all(float(np.linalg.norm(own[k] - own[other])) > NEAR for other in found):
            found.append(k)
    return tuple(found[: len(direction)])


def _normalised(points: FloatArray) -> FloatArray:
    total = points.sum(-1, keepdims=True)
    return np.asarray(points / np.where(total > 0.0, total, 1.0))


def _lattice(objectives: int) -> FloatArray:
    """Return the points of the simplex with entries k / h: h = 20 for three losses, fewer for more."""
    h = {3: 20, 4: 10}.get(objectives, 5)
    bars = combinations(range(h + objectives - 1), objectives - 1)
    cuts = np.array(list(bars))
    edges = np.column_stack([np.full(len(cuts), -1), cuts, np.full(len(cuts), h + objectives - 1)])
    return np.asarray((np.diff(edges, axis=1) - 1) / h)
