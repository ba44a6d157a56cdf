"""Cells of the benchmark of fronts on problems whose front is known: ``pareto_front``, sweeps of weights, SMGD."""

from __future__ import annotations

from functools import cache
from time import process_time
from typing import Any

import numpy as np
import torch

from benchmarks.cells import Found
from stimulus_moo import NonFiniteError, fit, hypervolume
from stimulus_moo.fronts import pareto_front
from stimulus_moo.lab.synthetic.zdt import TRACED

POINTS, TOP = 21, 1.1  # points of a front, and every entry of the reference point
N, NOISE = 64, 0.3  # samples, and their noise
OURS, ADAM, SMGD = "pareto_front", f"Adam, {POINTS} weights", f"SMGD, {POINTS} starts"
_DENSE = 45  # resolution of the fronts for the best possible points


def known(problem: str, method: str, lr: float | None, seed: int, steps: int) -> Found:
    """Trace one known front; return the losses without noise, the passes and the CPU seconds."""
    front, begin = TRACED[problem], process_time()
    generator = torch.Generator().manual_seed(seed)
    if method == OURS:
        made = front.problem(N, noise=NOISE, seed=seed, start=front.start(generator))
        options: dict[str, Any] = {"points": POINTS, "steps": steps, "anchor_batch": N, "progress": False}
        found = pareto_front(made.model, made.losses, made.data, **options)
        ends = [front.objectives(model().detach()).tolist() for model in found.models()]  # type: ignore[operator]
        return {"losses": ends, "passes": found.passes, "seconds": process_time() - begin}
    ends, passes = [], 0
    for k, weights in enumerate(_weights(len(front.objectives(front.start(generator))))):
        made = front.problem(N, noise=NOISE, seed=seed, start=front.start(generator))
        rule: dict[str, Any] = {"method": "smgd"}
        if method == ADAM:
            rule = {"method": "scalarisation-adam", "weights": weights}
        limits: dict[str, Any] = {"lr": lr, "steps": steps, "seed": k, "guard": False, "progress": False}
        try:
            passes += fit(made.model, made.losses, made.data, **rule, **limits).passes
        except NonFiniteError:
            continue
        ends.append(front.objectives(made.model().detach()).tolist())
    return {"losses": ends, "passes": passes, "seconds": process_time() - begin}


def quality(problem: str, found: Found) -> dict[str, float]:
    """Return the share of points on the front, the largest distance, and the hypervolume relative to the best one."""
    import moocore

    losses = np.array(found["losses"])
    apart = TRACED[problem].distances(torch.tensor(losses)).numpy()
    return {
        "points": len(losses),
        "on_front": float((apart <= 1e-3).mean()),
        "distance": float(apart[moocore.is_nondominated(losses)].max()),
        "hypervolume": volume(losses) / best_volume(problem),
    }


def volume(points: Any) -> float:
    """Return the hypervolume below the reference point; 0 without points."""
    return hypervolume(points, [TOP] * len(points[0])) if len(points) else 0.0


@cache
def best_volume(problem: str) -> float:
    """Return the hypervolume of 21 points of the front that no exchange of one of them for another point improves."""
    front = TRACED[problem]
    if problem == "dtlz2-3":
        directions = np.array([[i, j, _DENSE - i - j] for i in range(_DENSE + 1) for j in range(_DENSE + 1 - i)])
        points = directions / np.linalg.norm(directions, axis=1, keepdims=True)
    else:
        points = np.unique(front.front(10 * _DENSE).numpy(), axis=0)
    chosen: list[int] = []
    while len(chosen) < POINTS:
        chosen.append(_best_addition(points, chosen))
    before = 0.0
    while (now := volume(points[chosen])) > before:
        before = now
        for k in range(POINTS):
            chosen[k] = _best_addition(points, chosen[:k] + chosen[k + 1 :])
    return now


def _best_addition(points: Any, chosen: list[int]) -> int:
    return int(np.argmax([volume(points[[*chosen, k]]) for k in range(len(points))]))


def _weights(losses: int) -> list[list[float]]:
    """Return 21 weights: evenly spaced for two losses, a lattice with fifths for three."""
    if losses == 2:
        return [[1.0 - k / (POINTS - 1), k / (POINTS - 1)] for k in range(POINTS)]
    return [[i / 5, j / 5, (5 - i - j) / 5] for i in range(6) for j in range(6 - i)]
