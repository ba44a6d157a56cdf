"""Runs of the study rates: average stationarity over a horizon, and distance to the Pareto set over time."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from stimulus_moo import NonFiniteError, Progress, fit, pareto_stationarity
from stimulus_moo.lab.studies.sheet import mean
from stimulus_moo.lab.synthetic.logistic import nonconvex_logistic, smoothness
from stimulus_moo.lab.synthetic.ridge import Ridge, multi_objective_ridge


def constant_step(settings: Mapping[str, Any], method: str, seed: int) -> list[float] | None:
    """Return (1/T) sum over t < T of the stationarity at x_t, for every horizon T of one run at 1 / (2 L).

    L is the smoothness of a single sample's loss. The stationarity is exact, over all data, at every iterate. None if
    the run diverged.
    """
    problem = _logistic(settings, seed)
    horizons = settings["horizons"]
    visited = _stationarities(problem, method, seed, lr=_longest(settings, problem), steps=max(horizons), every=1)
    return None if visited is None else [mean(visited[:horizon]) for horizon in horizons]


def shrinking_step(settings: Mapping[str, Any], method: str, horizon: int, seed: int, lr: float | None) -> float | None:
    """Return the average stationarity over a horizon T at a step size proportional to 1 / sqrt(T).

    At the shortest horizon the step size is ``lr``, or 1 / (2 L) if that is None. The average is over at most 128
    evenly spaced iterates. None if the run diverged.
    """
    problem = _logistic(settings, seed)
    longest = _longest(settings, problem) if lr is None else lr
    step = longest * math.sqrt(min(settings["horizons"]) / horizon)
    visited = _stationarities(problem, method, seed, lr=step, steps=horizon, every=max(1, horizon // 128))
    return None if visited is None else mean(visited[:-1])


def _logistic(settings: Mapping[str, Any], seed: int) -> Any:
    names = ("dimension", "decay", "regulariser")
    return nonconvex_logistic(settings["n"], seed=seed, **{name: settings[name] for name in names})


def _longest(settings: Mapping[str, Any], problem: Any) -> float:
    return 1.0 / (2.0 * smoothness(problem.data[0], settings["regulariser"]).sample)


def _stationarities(problem: Any, method: str, seed: int, *, lr: float, steps: int, every: int) -> list[float] | None:
    """Return the stationarity over all data at x_0 and after every ``every`` steps."""
    model, losses, data = problem.model, problem.losses, problem.data
    visited = [pareto_stationarity(model, losses, [data])]
    try:
        result = fit(
            model, losses, data, method=method, lr=lr, steps=steps, evaluate_every=every, seed=seed, progress=False
        )
    except NonFiniteError:
        return None
    return visited + [value for value in result.history["stationarity"] if not math.isnan(value)]


def theory_step(ridge: Ridge) -> float:
    """Return the largest step size that Theorem 2 allows: min{1/2, 1/(2 mu), 1/(8 L), mu / (64 L^2)}."""
    mu, smooth = ridge.mu, ridge.smoothness
    return min(0.5, 1.0 / (2.0 * mu), 1.0 / (8.0 * smooth), mu / (64.0 * smooth**2))


def ridge_of(settings: Mapping[str, Any], seed: int) -> Ridge:
    """Return the ridge problem of a seed."""
    names = ("objectives", "ridge_dimension", "ridge")
    objectives, dimension, ridge = (settings[name] for name in names)
    return multi_objective_ridge(
        settings["ridge_n"], seed=seed, objectives=objectives, dimension=dimension, ridge=ridge
    )


def distances(settings: Mapping[str, Any], method: str, seed: int, lr: float | None) -> dict[str, Any] | None:
    """Record the distance to the Pareto set of a ridge problem; if lr is None, the theory's step size is used.

    Returns:
        ``every``: steps between two distances; ``distance``: from x_0 on; ``rate``: 3 mu lr / 4, the exponent of the
        theorem's bound on the squared distance; ``picked`` and ``picked_at``: the random clock's iterate. None if
        the run diverged.
    """
    ridge = ridge_of(settings, seed)
    model, steps = ridge.problem.model, settings["ridge_steps"]
    step = theory_step(ridge) if lr is None else lr
    every = max(1, steps // 100)
    found = [ridge.distance(model().detach())]

    def follow(told: Progress) -> None:
        if told.step % every == 0:
            found.append(ridge.distance(model().detach()))

    problem = ridge.problem
    try:
        result = fit(
            model,
            problem.losses,
            problem.data,
            guard=False,  # the published method, without safeguard
            method=method,
            lr=step,
            steps=steps,
            mu=ridge.mu,
            seed=seed,
            callbacks=[follow],
            progress=False,
        )
    except NonFiniteError:
        return None
    picked = ridge.distance(result.picked["x"])
    return {
        "every": every,
        "distance": found,
        "rate": 0.75 * ridge.mu * step,
        "picked": picked,
        "picked_at": result.picked_at,
    }


def expected_pick(distance: Sequence[float], every: int, rate: float) -> float:
    """Return the mean squared distance of the random clock's iterate, sum_t w_t D_t^2 / sum_t w_t.

    w_t = (1 - rate)^(1-t) as in the theorem; computed from the recorded iterates.

    >>> expected_pick([2.0, 1.0], 1, 0.5)  # weights 1 : 2
    2.0
    """
    last = len(distance) - 1
    weights = [(1.0 - rate) ** (every * (last - i)) for i in range(len(distance))]
    return sum(w * d**2 for w, d in zip(weights, distance, strict=True)) / sum(weights)
