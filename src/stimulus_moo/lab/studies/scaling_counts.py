"""How many gradient evaluations one run of the scaling-law study takes to reach the tolerance."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from torch.optim.lr_scheduler import CosineAnnealingLR

from stimulus_moo import NonFiniteError, Progress, Result, fit
from stimulus_moo.lab.problem import Problem
from stimulus_moo.lab.study import Cell
from stimulus_moo.lab.synthetic.logistic import nonconvex_logistic, smoothness

#: whose direction at an anchor step is the exact min-norm direction over all data, so that the check costs nothing
EXACT = ("mgd", "stimulus")

#: the settings on which every cell depends
_COMMON = ("tolerance", "dimension", "decay", "regulariser", "max_steps")


def counted(cell: Cell, settings: Mapping[str, Any], method: str, n: int, seed: int, step: str) -> dict[str, Any]:
    """Return what ``count`` finds, from the kept cells where it is there."""
    key = {"method": method, "n": n, "seed": seed, "step": step, **{name: settings[name] for name in _COMMON}}
    found: dict[str, Any] = cell(key, lambda: count(settings, method, n, seed, step))
    return found


def count(settings: Mapping[str, Any], method: str, n: int, seed: int, step: str) -> dict[str, Any]:
    """Train from x_0 = 0 until the stationarity over all data is at most the tolerance, and count.

    For MGD at every step, and for STIMULUS at every anchor, ||d_t||^2 is that stationarity. Other methods are measured
    over all data after every ``period`` steps. All counts include the full gradient of the check that succeeded (n
    evaluations, part of the method for MGD and STIMULUS), and none of those that failed unless the method itself makes
    them.

    Args:
        settings: of the study.
        method: a name of ``METHODS``.
        n: number of samples.
        seed: of data and batches.
        step: "sample" or "mean": whose smoothness L gives the step size 1 / (2 L).
    """
    problem = _problem(settings, n, seed)
    bound = smoothness(problem.data[0], settings["regulariser"])
    tolerance = settings["tolerance"]
    stop: dict[str, Any] = {"tolerance": tolerance}
    if method in EXACT:
        stop = {"callbacks": [partial(_stationary, tolerance)]}
    lr = 1.0 / (2.0 * (bound.sample if step == "sample" else bound.mean))
    result = _train(problem, method, seed, lr=lr, steps=settings["max_steps"], epsilon=tolerance, **stop)
    if result is None or result.stopped == "steps":
        return {"reached": False, "gradients": None, "steps": None}
    extra = 0 if method in EXACT else n
    return {"reached": True, "gradients": result.gradients + extra, "steps": result.steps}


def tuned(cell: Cell, settings: Mapping[str, Any], method: str, n: int, spent: Sequence[int]) -> dict[str, Any]:
    """Tune a scalarisation on seed 0 and run the winner on all seeds, each with a multiple of STIMULUS's evaluations.

    Returns:
        ``lr`` and ``schedule`` of the winner, and ``runs``, what ``scalarise`` finds for every seed.
    """

    def trial(seed: int, lr: float, schedule: str) -> dict[str, Any]:
        budget = math.ceil(settings["budget"] * spent[seed])
        key = {"method": method, "n": n, "seed": seed, "lr": lr, "schedule": schedule, "budget": budget}
        key.update({name: settings[name] for name in _COMMON})
        found: dict[str, Any] = cell(key, lambda: scalarise(settings, method, n, seed, lr, schedule, budget))
        return found

    grid = [(lr, schedule) for lr in settings["baselines"][method] for schedule in ("constant", "cosine")]
    lr, schedule = min(grid, key=lambda choice: rank(trial(0, *choice)))
    return {"lr": lr, "schedule": schedule, "runs": [trial(seed, lr, schedule) for seed in range(len(spent))]}


def rank(found: Mapping[str, Any]) -> tuple[bool, float]:
    """Sort by evaluations where the tolerance was reached, and by the stationarity left where it was not."""
    left = math.inf if found["stationarity"] is None else found["stationarity"]
    return not found["reached"], found["gradients"] if found["reached"] else left


def scalarise(
    settings: Mapping[str, Any], method: str, n: int, seed: int, lr: float, schedule: str, budget: int
) -> dict[str, Any]:
    """Train on the mean loss until the tolerance or the budget is reached; measured after every ``period`` steps."""
    problem = _problem(settings, n, seed)
    steps = math.ceil(budget / (math.isqrt(n - 1) + 1))
    decay = partial(CosineAnnealingLR, T_max=steps) if schedule == "cosine" else None
    tolerance = settings["tolerance"]
    result = _train(problem, method, seed, lr=lr, steps=steps, tolerance=tolerance, scheduler=decay)
    if result is None:
        return {"reached": False, "gradients": budget, "stationarity": None}
    reached = result.stationarity <= tolerance
    return {"reached": reached, "gradients": result.gradients + n, "stationarity": result.stationarity}


def _problem(settings: Mapping[str, Any], n: int, seed: int) -> Problem:
    return nonconvex_logistic(
        n, seed=seed, dimension=settings["dimension"], decay=settings["decay"], regulariser=settings["regulariser"]
    )


def _stationary(tolerance: float, told: Progress) -> bool:
    return bool(told.record["anchored"] and told.record["sq_norm"] <= tolerance)


def _train(problem: Problem, method: str, seed: int, **options: Any) -> Result | None:
    """Return the result, or None where the run diverged."""
    model, losses, data = problem.model, problem.losses, problem.data
    try:
        common: dict[str, Any] = {"anchor_batch": 8192, "progress": False, "guard": False}  # to the letter
        return fit(model, losses, data, method=method, seed=seed, **common, **options)
    except NonFiniteError:
        return None
