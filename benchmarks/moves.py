"""``navigate`` on Adult: ten moves there and back from a point of a front, for both losses."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks.cells import Found, fill
from benchmarks.data_fronts import POINTS, case_of
from stimulus_moo import fit, measure
from stimulus_moo.fronts import navigate, pareto_front

_FOLDER, _VERSION = Path("runs/benchmarks/moves"), "4"
_BY, _PAIRS, _SEEDS, _STEPS, _SETTLING = 0.05, 5, 3, 1000, 3000
_LOSSES = ("cross-entropy", "DEO surrogate")
_MODELS = ("linear model", "network")

TITLE = "navigate: ten moves there and back on Adult's front"
TEXT = f"""\
A front of at most {POINTS} points is traced as in the section on fronts ({_STEPS} steps for an end, batches of 256), of
a linear model and of the network. The middle point, in the order of the cross-entropy, is trained for another
{_SETTLING} steps under the bound that the loss does not rise, since a point of a front is trained for a few passes over
the data only. From there `navigate` reduces the loss by {_BY:.0%} and then lets it rise to its first value, {_PAIRS}
times, in at most {_STEPS} steps each. "there" are the changes of the moves that reduce the loss: smallest and largest;
target 5% ± 1. "larger stationarity" counts the moves, of {2 * _PAIRS}, that end at a larger Pareto stationarity than
where they began; target 0. "back" is how far each loss is from its first value after all moves; target: 2%. The linear
model is close to the front when the moves begin; the network is not, and goes on learning. Passes are those of all
moves, relative to those of the front.
"""
COLUMNS = [
    *("model", "loss", "seed", "before", "stationarity", "there", "larger stationarity", "back", "passes / front"),
]


def moves(model: str, improve: int, seed: int, points: int, steps: int, settling: int, pairs: int, data: str) -> Found:
    """Trace a front, settle on its middle point, move there and back, and return every move."""
    case = case_of(data, seed, None)
    options: dict[str, Any] = {"batch_size": 256, "seed": seed, "check": False, "anchor_batch": len(case.train[0])}
    torch.manual_seed(seed)
    start = case.model() if model == "network" else nn.Linear(case.train[0].shape[1], 1)
    front = pareto_front(start, case.losses, case.train, points=points, steps=steps, progress=False, **options)
    begin = sorted(front.points, key=lambda point: point.losses[0])[len(front) // 2]
    moved, bound = front.model(begin), {improve: begin.losses[improve]}
    fixed: dict[str, Any] = {"method": "stimulus-m", "period": 20, "steps": settling, "progress": False}
    fit(moved, case.losses, case.train, bounds=bound, **fixed, **options)
    first, found = measure(moved, case.losses, [case.train]).losses, []
    for k in range(2 * pairs):
        by = _BY if k % 2 == 0 else 1 - first[improve] / found[-1]["after"][improve]
        move = navigate(moved, case.losses, case.train, improve=improve, by=by, steps=steps, **options)
        kept = ("before", "after", "stationarity_before", "stationarity_after", "improved", "missed", "passes")
        found.append({name: getattr(move, name) for name in kept})
    return {"first": first, "moves": found, "front_passes": front.passes}


def rows(quick: bool = False) -> list[Any]:
    """Return a row per loss and seed; cells that are in the folder are not run again."""
    if quick:
        with tempfile.TemporaryDirectory() as folder:
            fixed = {"points": 2, "steps": 2, "settling": 2, "pairs": 1, "data": "compas"}
            return _rows(Path(folder), 1, fixed, _MODELS[:1], workers=1)
    fixed = {"points": POINTS, "steps": _STEPS, "settling": _SETTLING, "pairs": _PAIRS, "data": "adult"}
    return _rows(_FOLDER, _SEEDS, fixed, _MODELS)


def _rows(
    folder: Path, seeds: int, fixed: dict[str, Any], models: Sequence[str], workers: int | None = None
) -> list[Any]:
    cells = [
        {"model": model, "improve": s, "seed": seed, **fixed}
        for model in models
        for s in range(len(_LOSSES))
        for seed in range(seeds)
    ]
    found = fill(folder, moves, cells, _VERSION, workers)
    return [_row(cell, one) for cell, one in zip(cells, found, strict=True)]


def _row(cell: dict[str, Any], found: Found) -> list[object]:
    made, first = found["moves"], found["first"]
    there = [move["improved"] for move in made[::2]]
    larger = sum(move["stationarity_after"] > move["stationarity_before"] for move in made)
    back = [end / begin - 1 if begin else 0.0 for end, begin in zip(made[-1]["after"], first, strict=True)]
    passes = sum(move["passes"] for move in made) / found["front_passes"]
    return [
        cell["model"],
        _LOSSES[cell["improve"]],
        cell["seed"],
        ", ".join(f"{loss:.4f}" for loss in first),
        f"{made[0]['stationarity_before']:.1e}",
        f"{min(there):.1%} to {max(there):.1%}",
        f"{larger} of {len(made)}",
        ", ".join(f"{share:+.1%}" for share in back),
        f"{passes:.2f}",
    ]
