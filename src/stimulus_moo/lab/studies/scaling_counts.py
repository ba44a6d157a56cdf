"""Runs of the study scaling-law: gradient evaluations until the tolerance is reached."""

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

#: Methods whose direction at an anchor is the exact min-norm direction over all data, so that the check is free.
EXACT = ("mgd", "stimulus")

#: Settings that every cell depends on.
_COMMON = ("tolerance", "dimension", "decay", "regulariser", "max_steps")


def counted(cell: Cell, settings: Mapping[str, Any], method: str, n: int, seed: int, step: str) -> dict[str, Any]:
    """Return the result of ``count``, from the stored cells if available."""
    key = {"method": method, "n": n, "seed": seed, "step": step, **{name: settings[name] for name in _COMMON}}
    found: dict[str, Any] = cell(key, lambda: count(settings, method, n, seed, step))
    return found


def count(settings: Mapping[str, Any], method: str, n: int, seed: int, step: str) -> dict[str, Any]:
    """Train from x_0 = 0 until the stationarity over all data is at most the tolerance, and count evaluations.

    For MGD at every step, and for STIMULUS at every anchor, ||d_t||^2 is that stationarity. Other methods are measured
    over all data after every ``period`` steps. Counts include the full gradient of the successful check (n evaluations,
    part of the method for MGD and STIMULUS), but not those of failed checks unless they are part of the method.

    Args:
        settings: settings of the study.
        method: a name in ``METHODS``.
        n: number of samples.
        seed: seed of data and batches.
        step: "sample" or "mean": the loss whose smoothness L determines the step size 1 / (2 L).
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
    """Tune a scalarisation on seed 0 and run the best on all seeds, with a multiple of STIMULUS's evaluations.

    Returns:
        ``lr`` and ``schedule`` of the best, and ``runs``, the result of ``scalarise`` for every seed.
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
    """Sort key: evaluations if the tolerance was reached, otherwise the remaining stationarity."""
    left = math.inf if found["stationarity"] is None else found["stationarity"]
    return not found["reached"], found["gradients"] if found["reached"] else left


def scalarise(
    settings: Mapping[str, Any], method: str, n: int, seed: int, lr: float, schedule: str, budget: int
) -> dict[str, Any]:
    """Train on the mean loss until the tolerance or the budget is reached; checked every ``period`` steps."""
    problem = _problem(settings, n, seed)
    steps = math.ceil(budget / (math.isqrt(n - 1) + 1))
    decay = partial(CosineAnnealingLR, T_max=steps) if schedule == "cosine" else None
    tolerance = settings["tolerance"]
    result = _train(problem, method, seed, lr=lr, steps=steps, tolerance=tolerance, scheduler=decay)
    if result is None:
        return {"reached": False, "gradients": budget, "passes": None, "stationarity": None}
    return {
        "reached": result.stationarity <= tolerance,
        "gradients": result.gradients + n,
        "passes": result.passes + len(problem.tasks) * n,
        "stationarity": result.stationarity,
    }


def _problem(settings: Mapping[str, Any], n: int, seed: int) -> Problem:
    return nonconvex_logistic(
        n, seed=seed, dimension=settings["dimension"], decay=settings["decay"], regulariser=settings["regulariser"]
    )


def _stationary(tolerance: float, told: Progress) -> bool:
    return bool(told.record["anchored"] and told.record["sq_norm"] <= tolerance)


def _train(problem: Problem, method: str, seed: int, **options: Any) -> Result | None:
    """Return the result, or None if the run diverged."""
    model, losses, data = problem.model, problem.losses, problem.data
    try:
        common: dict[str, Any] = {
            "anchor_batch": 8192,
            "progress": False,
            "guard": False,
        }  # the published method, without safeguard
        return fit(model, losses, data, method=method, seed=seed, **common, **options)
    except NonFiniteError:
        return None
