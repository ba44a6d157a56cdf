"""Where the next points of a front are placed: on rays through its gaps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from stimulus_moo import hypervolume

FloatArray = NDArray[np.float64]

NEAR = 0.1  # a gap is closed if what is left of it, next to what earlier rays have shown to be empty, is smaller
OFFSET = 0.1  # reference point of the hypervolume beyond the largest losses, and origin of rays below the least ones
CANDIDATES = 3000  # directions that are compared for three and more losses
FLOOR = 0.01  # least range of a loss, relative to how far it has fallen from the start
SMOOTHING = 1e-4  # of the interpolation between directions, some of which are almost equal
EQUAL = 1e-3  # a smaller difference, relative to the range of a loss, is no advantage
APART = 0.2  # points closer than this share of an even spacing count as one


@dataclass(frozen=True)
class Place:
    """A ray, and the points next to it."""

    preference: list[float]
    reference: list[float]
    neighbours: tuple[int, ...]


Ray = tuple[Sequence[float], Sequence[float]]  #: preference and reference of a ray that was tried


def next_places(losses: FloatArray, tried: Sequence[Ray], count: int, start: Sequence[float]) -> list[Place]:
    """Return up to ``count`` places for new points; none if no gap is left.

    With two losses, a gap is the rectangle between two neighbours on the front. The places are on the diagonals of the
    largest ones, in units of the range of each loss; if there is one point only, the first place is beyond it. With
    more losses, the first places are the centre, and the corners: for each loss the ray on which the others are small.
    Then come the directions in which a point gains most hypervolume, if the distance of the front is interpolated
    between the known ones. The ends do not always show the range of each loss (all may have the same small loss), so
    its fall from the start is the unit for the first places of more than two losses, and for a single point.

    Args:
        losses: points x S, of points that do not dominate each other.
        tried: the rays tried before, with or without success.
        count: how many.
        start: the losses before the training.
    """
    ideal, scale = losses.min(0), _scale(losses)
    fallen = np.maximum(np.array(start) - ideal, 0.0)
    if losses.shape[1] > 2:
        scale = np.maximum(scale, fallen if len(tried) <= len(ideal) else FLOOR * fallen)
    elif len(losses) == 1:
        scale = positive(fallen)
    points = (losses - ideal) / scale
    empty = [(_empty_corner(losses, ray) - ideal) / scale for ray in tried]
    find = _gaps if losses.shape[1] == 2 else _directions
    found = []
    for origin, direction, neighbours in find(points, empty, count):
        r = 1.0 / (scale * direction)
        found.append(Place((r / r.max()).tolist(), (ideal + scale * origin).tolist(), neighbours))
    return found


def distinct(losses: FloatArray, points: int) -> list[int]:
    """Return the nondominated points; of those much closer than an even spacing of ``points``, the first.

    A point whose only advantage over another one is negligible counts as dominated.
    """
    scaled = (losses - losses.min(0)) / _scale(losses)
    front: list[int] = []
    for k in np.argsort(scaled.sum(1), kind="stable").tolist():
        more = scaled[k] - scaled[front]
        if not ((more >= -EQUAL).all(1) & (more > EQUAL).any(1)).any():
            front.append(k)
    kept: list[int] = []
    for k in sorted(front):
        if all(float(np.abs(scaled[k] - scaled[other]).max()) >= APART / points for other in kept):
            kept.append(k)
    return kept


def best(losses: FloatArray, points: int) -> list[int]:
    """Return ``points`` of the points with a large hypervolume, the least value of every loss among them.

    One by one, the point that adds least is left out. Then points are exchanged for others as long as this gains.
    """
    scaled, kept = (losses - losses.min(0)) / _scale(losses), list(range(len(losses)))
    ends = {int(np.where(column <= EQUAL, scaled.sum(1), np.inf).argmin()) for column in scaled.T}
    while len(kept) > points:
        others = [k for k in kept if k not in ends]
        without = [_hypervolume(scaled[[k for k in kept if k != out]]) for out in others]
        kept.remove(others[int(np.argmax(without))])
    before = 0.0
    while len(kept) < len(losses) and (now := _hypervolume(scaled[kept])) > before:
        before = now
        for out in [k for k in kept if k not in ends]:
            rest = [k for k in kept if k != out]
            others = [out, *(k for k in range(len(losses)) if k not in kept)]
            kept = [*rest, others[int(np.argmax([_hypervolume(scaled[[*rest, k]]) for k in others]))]]
    return sorted(kept)


def value(losses: FloatArray, preference: Sequence[float], reference: Sequence[float]) -> FloatArray:
    """Return max over s of r_s (f_s - z_s), which ``Ray`` minimises, for every point."""
    return np.asarray((np.array(preference) * (losses - np.array(reference))).max(-1))


def positive(scale: FloatArray) -> FloatArray:
    """Return units of the losses; 1 where a loss has no range."""
    return np.where(scale > 0.0, scale, 1.0)


def _empty_corner(losses: FloatArray, ray: Ray) -> FloatArray:
    """Return the point on a ray below which there is nothing: it has the least value of all points."""
    preference, reference = ray
    return np.asarray(np.array(reference) + value(losses, preference, reference).min() / np.array(preference))


def _gaps(
    points: FloatArray, empty: Sequence[FloatArray], count: int
) -> list[tuple[FloatArray, FloatArray, tuple[int, ...]]]:
    """Return the diagonals and ends of the gaps that are open, the largest first.

    The origin of a diagonal is moved back to the level of the least losses. This does not change the ray, but the rate
    at which differences from it decay, which should not grow as gaps become smaller.
    """
    found: list[tuple[FloatArray, FloatArray, tuple[int, ...]]] = []
    for a, b in pairwise(np.argsort(points[:, 0], kind="stable").tolist()):
        low, high = np.array([points[a, 0], points[b, 1]]), np.array([points[b, 0], points[a, 1]])
        size = high - low
        if (size > 0.0).all() and not any((high <= corner + NEAR * size).all() for corner in empty):
            found.append((low - (low / size).max() * size, size, (a, b)))
    if len(points) == 1 and not empty:
        found.append((np.full(2, -OFFSET), np.ones(2), (0,)))
    found.sort(key=lambda gap: -float(np.linalg.norm(gap[1])))
    return found[:count]


def _directions(
    points: FloatArray, empty: Sequence[FloatArray], count: int
) -> list[tuple[FloatArray, FloatArray, tuple[int, ...]]]:
    """Return rays from a point below the least losses, with the points around each."""
    objectives = points.shape[1]
    origin = np.full(objectives, -OFFSET)
    chosen = list(np.vstack([np.ones(objectives), np.eye(objectives)])[len(empty) : len(empty) + count])
    if len(chosen) < count:
        expected, front = _expected(points, empty), points
        while len(chosen) < count:
            chosen.append(expected[int(np.argmax([_hypervolume(np.vstack([front, one])) for one in expected]))])
            front = np.vstack([front, chosen[-1]])
    own = _normalised(points + OFFSET)[0]
    return [(origin, one + OFFSET, _around(_normalised(one + OFFSET)[0], own)) for one in chosen]


def _expected(points: FloatArray, empty: Sequence[FloatArray]) -> FloatArray:
    """Return where the front is expected in many directions: interpolated between what is known, within its limits.

    Nothing is below a known point or an empty corner, and nothing of the front is above a known point.
    """
    from scipy.interpolate import RBFInterpolator

    random = np.random.default_rng(len(points) + len(empty))
    directions = random.dirichlet(np.ones(points.shape[1]), CANDIDATES)
    known = np.vstack([points, *empty]) + OFFSET
    own, totals = _normalised(known)
    first = np.unique(own.round(3), axis=0, return_index=True)[1]
    surface = RBFInterpolator(own[first, :-1], totals[first], kernel="linear", degree=0, smoothing=SMOOTHING)
    least = (known / directions[:, None]).min(2).max(1)
    largest = ((points + OFFSET) / directions[:, None]).max(2).min(1)
    distances = np.minimum(np.maximum(surface(directions[:, :-1]), least), largest)
    return np.asarray(np.maximum(directions * distances[:, None] - OFFSET, 0.0))


def _around(direction: FloatArray, own: FloatArray) -> tuple[int, ...]:
    """Return the S points nearest to a direction, leaving out those close to nearer ones."""
    found: list[int] = []
    for k in np.argsort(np.linalg.norm(own - direction, axis=1)).tolist():
        if all(float(np.linalg.norm(own[k] - own[other])) > NEAR for other in found):
            found.append(k)
    return tuple(found[: len(direction)])


def _normalised(points: FloatArray) -> tuple[FloatArray, FloatArray]:
    totals = points.sum(-1, keepdims=True)
    return points / totals, totals[..., 0]


def _scale(losses: FloatArray) -> FloatArray:
    return positive(np.ptp(losses, axis=0))


def _hypervolume(points: FloatArray) -> float:
    return hypervolume(points, [1.0 + OFFSET] * points.shape[1])
