"""Move a trained model a little along the Pareto front: one loss falls by a given share, the others rise least."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from stimulus_moo import InvalidOption, fit
from stimulus_moo._engine.placement import require_copyable
from stimulus_moo.anchors import FullPass
from stimulus_moo.data.sources import as_source
from stimulus_moo.fronts.job import WARM, refuse_taken
from stimulus_moo.metrics import Measurement, measure
from stimulus_moo.options import natural_number, positive_integer, real
from stimulus_moo.training.devices import on_device
from stimulus_moo.training.progress import Progress

LOOK = 20  # steps between two looks whether the move is complete
CLOSE = 0.05  # the loss has changed as asked for if what is missing is at most this share of the change
PERIOD = 20  # steps between two anchors: short, so that bounds are met closely


@dataclass(frozen=True)
class Move:
    """What ``navigate`` did.

    Attributes:
        before, after: the S losses over the data set.
        stationarity_before, stationarity_after: the Pareto stationarity there.
        improved: the share by which the chosen loss fell; negative if it rose.
        missed: how far the loss is above the value asked for; 0 if it was reached.
        passes: per-sample derivatives of one scalar, those of the measurements included.
    """

    before: list[float]
    after: list[float]
    stationarity_before: float
    stationarity_after: float
    improved: float
    missed: float
    passes: int


def navigate(
    model: torch.nn.Module,
    losses: Callable[[Any, Any], Any],
    dataset: Any,
    *,
    improve: int = 0,
    by: float = 0.05,
    steps: int = 1000,
    **options: Any,
) -> Move:
    """Move a trained model along the front: reduce one loss by a share, at the least cost to the others.

    The loss is bounded by (1 - by) times its value, and ``Bounded`` gives the weights. Far from the bound its direction
    is the tangent of the front: the one along which the bounded loss falls as needed and the others rise least. Close
    to it, the same rule corrects back onto the front. The method is ``"stimulus-m"``, whose steps shrink with the
    gradient: a new Adam would lead away from the front first. The move ends as soon as the loss has changed as asked
    for and the Pareto stationarity is not larger than before, so that the others are not trained further. If this does
    not happen within ``steps``, as from a model that is close to the least value of the loss, the best model on the way
    is taken, and ``Move.missed`` says what is missing.

    Args:
        model: the trained model. It is changed in place at the end; after an exception it is as it was.
        losses, dataset: as for ``fit``.
        improve: the number of the loss, from 0.
        by: the share, below 1. A negative one lets the loss rise in favour of the others.
        steps: largest number of steps; a move that is complete ends earlier.
        options: further arguments of ``fit``; ``period`` is 20 by default.

    Raises:
        InvalidOption: an argument is invalid.

    >>> import torch
    >>> from stimulus_moo import fit
    >>> from stimulus_moo.fronts import navigate
    >>> _ = torch.manual_seed(0)
    >>> x = torch.randn(64, 2)
    >>> def losses(model, batch):
    ...     return (model(batch) - batch[:, :1]).square().mean(), (model(batch) + batch[:, :1]).square().mean()
    >>> model = torch.nn.Linear(2, 1)
    >>> _ = fit(model, losses, x, preference=[1.0, 1.0], steps=200)
    >>> move = navigate(model, losses, x, improve=0, by=0.05)
    >>> round(move.improved, 2), move.after[1] > move.before[1]
    (0.05, True)
    """
    share, improve = real("by", by, high=1.0, open_high=True), natural_number("improve", improve)
    refuse_taken("navigate", options)
    require_copyable(model, "navigate")
    losses, source = on_device(model, losses), as_source(dataset, options.get("collate_fn"))
    batches = FullPass(source, options.get("anchor_batch", 1024))
    found = measure(model, losses, batches, counts=options.get("counts"))
    if improve >= len(found.losses):
        raise InvalidOption(f"improve must be below the number of losses, {len(found.losses)}, found {improve}")
    now = found.losses[improve]
    bound = now - share * abs(now)
    moved = copy.deepcopy(model)

    def rank_of(here: Measurement) -> tuple[bool, float]:
        off = abs(here.losses[improve] - bound)
        close = off <= CLOSE * abs(share * now)
        return not close, here.stationarity if close else off

    looks, best = 0, _Look(rank_of(found), found, copy.deepcopy(model.state_dict()))

    def look() -> tuple[bool, float]:
        nonlocal looks, best
        here = measure(moved, losses, batches, counts=options.get("counts"))
        rank = rank_of(here)
        looks += 1
        if rank < best.rank:
            best = _Look(rank, here, copy.deepcopy(moved.state_dict()))
        return rank

    def arrived(progress: Progress) -> bool:
        return progress.step % LOOK == 0 and look() <= (False, found.stationarity)

    fixed: Any = {"method": WARM, "period": PERIOD, "bounds": {improve: bound}, "callbacks": [arrived]}
    fixed |= {"steps": positive_integer("steps", steps), "progress": False, **options}
    result = fit(moved, losses, dataset, **fixed)
    look()
    model.load_state_dict(best.state)
    after = best.measured.losses[improve]
    return Move(
        found.losses,
        best.measured.losses,
        found.stationarity,
        best.measured.stationarity,
        (now - after) / abs(now) if now else 0.0,
        max(after - bound, 0.0),
        result.passes + (1 + looks) * len(found.losses) * len(source),
    )


class _Look(NamedTuple):
    """A model on the way: close to the bound first, then of small stationarity; else how far from the bound."""

    rank: tuple[bool, float]
    measured: Any
    state: dict[str, Any]
