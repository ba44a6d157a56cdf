"""A Pareto front: trained models with their losses and weights, to compare, choose from, plot and save."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from stimulus_moo import InvalidOption, MissingDependency, hypervolume, measure
from stimulus_moo.options import natural_number, real, share

FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class FrontPoint:
    """One model of a front.

    Attributes:
        number: its place in the order in which the points were trained.
        losses: the S losses.
        weights: lambda of the last step, scaled to sum to one.
        stationarity: the Pareto stationarity.
        passes: per-sample derivatives of one scalar that its training took.
        target: what it was trained to: ``{"end": s, ...}``, or ``{"preference": r, "reference": z, ...}`` of a ``Ray``.
        state: the model's ``state_dict``.
    """

    number: int
    losses: list[float]
    weights: list[float]
    stationarity: float
    passes: int
    target: dict[str, Any]
    state: dict[str, Tensor] = field(repr=False)


class Front:
    """The points of a Pareto front, in the order in which they were trained.

    Args:
        points: at least one.
        model: a model into which the states of the points are loaded; None if only the numbers are needed.
        names: names of the objectives; default ``f0``, ``f1``, ...
        left_out: runs of ``pareto_front`` that gave no point: another one dominates or equals it. They have no state.

    >>> points = [FrontPoint(k, [k, 2.0 - k], [0.5, 0.5], 0.0, 10, {"end": 0}, {}) for k in range(3)]
    >>> front = Front(points)
    >>> front.losses.tolist(), front.nondominated.tolist()
    ([[0.0, 2.0], [1.0, 1.0], [2.0, 0.0]], [True, True, True])
    >>> front.choose(bounds={0: 1.5}).number, front.choose(preference=[1.0, 3.0]).number
    (1, 2)
    """

    def __init__(
        self,
        points: Iterable[FrontPoint],
        model: torch.nn.Module | None = None,
        names: Sequence[str] | None = None,
        left_out: Iterable[FrontPoint] = (),
    ) -> None:
        self.points, self.left_out = list(points), list(left_out)
        if not self.points:
            raise InvalidOption("points must hold at least one point, found none")
        self._model = model
        count = len(self.points[0].losses)
        self.names = [f"f{s}" for s in range(count)] if names is None else [str(name) for name in names]
        if len(self.names) != count:
            raise InvalidOption(f"names must hold one name per objective ({count}), found {len(self.names)}")

    def __len__(self) -> int:
        return len(self.points)

    def __repr__(self) -> str:
        return (
            f"Front({len(self)} points, {int(self.nondominated.sum())} of them nondominated, {len(self.names)} losses)"
        )

    @property
    def losses(self) -> FloatArray:
        """Points x S."""
        return np.array([point.losses for point in self.points], dtype=np.float64)

    @property
    def weights(self) -> FloatArray:
        """Points x S."""
        return np.array([point.weights for point in self.points], dtype=np.float64)

    @property
    def passes(self) -> int:
        """The passes of all runs together, those that were left out included."""
        return sum(run.passes for run in (*self.points, *self.left_out))

    @property
    def nondominated(self) -> NDArray[np.bool_]:
        """Which points no other one dominates; of equal points the first."""
        return np.asarray(_moocore("Front.nondominated").is_nondominated(self.losses), dtype=np.bool_)

    def hypervolume(self, reference: Sequence[float]) -> float:
        """Return the volume of what the points dominate, up to a reference point with one number per loss."""
        if len(list(reference)) != len(self.names):
            raise InvalidOption(f"reference must hold {len(self.names)} numbers, found {reference!r}")
        return hypervolume(self.losses, reference)

    def choose(
        self, *, preference: Sequence[float] | None = None, bounds: Mapping[int, float | str] | None = None
    ) -> FrontPoint:
        """Return the point for a preference or for bounds, as in ``fit``.

        Args:
            preference: r, one positive number per loss: the point with the least max over s of r_s f_s.
            bounds: the largest value of some losses, by objective: a number, or ``"5%"`` above the least of the front.
                Of the points within them, the one with the least sum of the other losses, each in units of its range.

        Raises:
            InvalidOption: no point is within the bounds; the message says how close the front comes.
        """
        if (preference is None) == (bounds is None):
            raise InvalidOption("choose needs either a preference or bounds")
        losses = self.losses
        if preference is not None:
            r = np.array([float(one) for one in preference])
            if len(r) != losses.shape[1] or not (r > 0.0).all():
                raise InvalidOption(f"preference must hold {losses.shape[1]} positive numbers, found {preference!r}")
            return self.points[int((losses * r).max(1).argmin())]
        assert bounds is not None
        for s in bounds:
            if natural_number("an objective of bounds", s) >= losses.shape[1]:
                raise InvalidOption(f"bounds must name objectives below {losses.shape[1]}, found {s}")
        limits = {s: _limit(s, bound, losses[:, s]) for s, bound in bounds.items()}
        over = sum((np.maximum(losses[:, s] - limit, 0.0) for s, limit in limits.items()), np.zeros(len(losses)))
        if not (over == 0.0).any():
            closest = self.points[int(over.argmin())]
            raise InvalidOption(
                f"bounds must leave a point of the front, found {limits}; the closest, point {closest.number}, has the "
                f"losses {closest.losses}"
            )
        span = np.ptp(losses, axis=0)
        free = [s for s in range(losses.shape[1]) if s not in limits]
        cost = (losses[:, free] / np.where(span[free] > 0.0, span[free], 1.0)).sum(1)
        return self.points[int(np.where(over == 0.0, cost, np.inf).argmin())]

    def model(self, point: FrontPoint) -> torch.nn.Module:
        """Return a copy of the model with the parameters of a point."""
        if self._model is None:
            raise InvalidOption("this front has no model; pass one to Front.load(folder, model)")
        found = copy.deepcopy(self._model)
        found.load_state_dict(point.state)
        return found

    def models(self) -> Iterator[torch.nn.Module]:
        """Return the models of all points, one after the other."""
        return map(self.model, self.points)

    def measured(self, losses: Any, batches: Iterable[Any], **options: Any) -> Front:
        """Return the same models with their losses on other data, such as a validation set.

        Args:
            losses: as for ``fit``.
            batches: batches that can be iterated again.
            options: of ``stimulus_moo.measure``.
        """
        found = []
        for point in self.points:
            values = measure(self.model(point), losses, batches, **options)
            found.append(replace(point, losses=values.losses, stationarity=values.stationarity))
        return Front(found, self._model, self.names, self.left_out)

    def plot(self, ax: Any = None) -> Any:
        """Draw the front with matplotlib: two or three losses as points, more as parallel coordinates; return the axes.

        Raises:
            MissingDependency: matplotlib is not installed.
        """
        from stimulus_moo.fronts.drawing import draw

        return draw(self, ax)

    def save(self, folder: str | Path) -> None:
        """Write ``front.json``, one file of parameters per point, and ``front.html``, a page to look at.

        The page needs no other file and no connection. Without plotly it is left out.

        Raises:
            InvalidOption: two points have the same number, as in a front made of two others.
        """
        from stimulus_moo.fronts.files import save

        save(self, Path(folder))

    @classmethod
    def load(cls, folder: str | Path, model: torch.nn.Module | None = None) -> Front:
        """Read a front that ``save`` wrote, or ``pareto_front`` with ``folder=``; files are read with ``weights_only``.

        Raises:
            StateMismatch: there is no front in the folder, or a file is damaged; the message names it.
        """
        from stimulus_moo.fronts.files import load

        points, left_out, names = load(Path(folder))
        return cls(points, model, names, left_out)


def _limit(s: int, bound: float | str, column: FloatArray) -> float:
    above, best = share(f"bounds[{s}]", bound), float(column.min())
    return real(f"bounds[{s}]", bound) if above is None else best + above * abs(best)


def _moocore(what: str) -> Any:
    try:
        import moocore
    except ImportError:
        raise MissingDependency(f"{what} needs moocore: pip install 'stimulus-moo[lab]'") from None
    return moocore
