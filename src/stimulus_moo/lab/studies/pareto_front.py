"""Study: the part of a known Pareto front that STIMULUS and linear scalarisation reach from many starts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from stimulus_moo import METHODS, NonFiniteError, fit, hypervolume
from stimulus_moo.lab.studies.sheet import chart, curve, dots, mean, page, table
from stimulus_moo.lab.study import Cell, Study
from stimulus_moo.lab.synthetic.fronts import FRONTS, FrontProblem, in_hull

#: Methods with given weights: run i of K minimises (1 - w) f_1 + w f_2 with w = i / (K - 1).
SCALARISED = ("vr-scalarisation", "scalarisation", "scalarisation-adam")

#: Settings that every cell depends on.
_COMMON = ("starts", "steps", "n", "noise", "lr", "adam_lr")

#: (problem, method) -> one list of end points (f_1, f_2) per seed.
Reached = Mapping[tuple[str, str], Sequence[list[list[float]]]]
#: (problem, method) -> the mean over seeds of each score.
Scores = Mapping[tuple[str, str], Mapping[str, float | None]]


def run(settings: Mapping[str, Any], seeds: int, cell: Cell) -> dict[str, Any]:
    """Run every method from the same starts on every problem, score the end points and return the verdict."""
    common = {name: settings[name] for name in _COMMON}
    reached = {
        (name, method): [
            cell(
                {"problem": name, "method": method, "seed": seed, **common}, partial(ends, settings, name, method, seed)
            )
            for seed in range(seeds)
        ]
        for name in settings["problems"]
        for method in settings["methods"]
    }
    scores = {key: _average([score(settings, FRONTS[key[0]], run) for run in runs]) for key, runs in reached.items()}
    return page(
        STUDY,
        settings,
        verdict(settings, scores),
        [_finding(settings, name, method, scores) for name, method in scores],
        [_table(settings, scores)],
        [_chart(settings, name, reached) for name in settings["problems"]],
    )


def ends(settings: Mapping[str, Any], name: str, method: str, seed: int) -> list[list[float]]:
    """Return the end points of the runs from all starts, as noise-free objective values, without diverged runs.

    The starts are the same for all methods. The i-th of K runs of a scalarisation has the weights (1 - w, w),
    w = i / (K - 1); the starts are random, so weight and start are independent.
    """
    front, count = FRONTS[name], settings["starts"]
    generator = torch.Generator().manual_seed(seed)
    found = []
    for i in range(count):
        problem = front.problem(settings["n"], noise=settings["noise"], seed=seed, start=front.start(generator))
        share = i / (count - 1)
        try:
            fit(
                problem.model,
                problem.losses,
                problem.data,
                guard=False,  # the published method, without safeguard
                method=method,
                lr=settings["adam_lr"] if method == "scalarisation-adam" else settings["lr"],
                steps=settings["steps"],
                seed=seed * count + i,
                weights=(1.0 - share, share) if method in SCALARISED else None,
                anchor_batch=settings["n"],
                progress=False,
            )
        except NonFiniteError:
            continue
        found.append(front.objectives(problem.model().detach()).tolist())
    return found


def score(
    settings: Mapping[str, Any], problem: FrontProblem, points: Sequence[Sequence[float]]
) -> dict[str, float | None]:
    """Score end points against the known front.

    Returns:
        ``on front``: share of the points within ``near`` of the front; ``coverage``: share of the front, by length,
        within ``near`` of a point; ``outside hull``: the same for the part that is not on the convex hull, None where
        there is none; ``hypervolume``: share of the front's own hypervolume, reference point (1.1, 1.1).
    """
    front = problem.front(settings["front_points"])
    values = torch.tensor(points, dtype=torch.float64).reshape(-1, 2)
    apart = torch.cdist(front, values)
    covered = (apart <= settings["near"]).any(1)
    outside = ~in_hull(front)
    return {
        "on front": (apart <= settings["near"]).any(0).double().mean().item() if len(values) else 0.0,
        "coverage": covered.double().mean().item(),
        "outside hull": covered[outside].double().mean().item() if outside.any() else None,
        "hypervolume": _area(values) / _area(front),
    }


def _area(points: Tensor) -> float:
    """Return the area dominated by the points, up to the reference point (1.1, 1.1); 0 without points."""
    return hypervolume(points.numpy(), [1.1, 1.1]) if len(points) else 0.0


def verdict(settings: Mapping[str, Any], scores: Scores) -> str:
    """Return "holds" if, off the convex hull, STIMULUS covers most of every front and scalarisation little of it."""
    holds = []
    for (_, method), found in scores.items():
        share = found["outside hull"]
        if share is not None and method == "stimulus":
            holds.append(share >= settings["covers"])
        elif share is not None and method in SCALARISED:
            holds.append(share <= settings["misses"])
    return "holds" if holds and all(holds) else "does not hold"


def _average(found: Sequence[Mapping[str, float | None]]) -> dict[str, float | None]:
    averages: dict[str, float | None] = {}
    for name in found[0]:
        known = [value for one in found if (value := one[name]) is not None]
        averages[name] = mean(known) if known else None
    return averages


def _finding(settings: Mapping[str, Any], name: str, method: str, scores: Scores) -> str:
    found = scores[name, method]
    what = f"{settings['starts']} weights" if method in SCALARISED else f"{settings['starts']} starts"
    outside = found["outside hull"]
    hull = "" if outside is None else f" and {outside:.0%} of its part off the convex hull"
    return (
        f"{FRONTS[name].title}: {METHODS[method].title} with {what} covers {found['coverage']:.0%} of the front{hull}; "
        f"{found['on front']:.0%} of the runs end on the front; hypervolume {found['hypervolume']:.3f} of the front's."
    )


def _table(settings: Mapping[str, Any], scores: Scores) -> dict[str, Any]:
    names = ("on front", "coverage", "outside hull", "hypervolume")
    rows = []
    for (name, method), found in scores.items():
        rounded = [None if (value := found[each]) is None else round(value, 4) for each in names]
        rows.append([FRONTS[name].title, METHODS[method].title, *rounded])
    columns = ["problem", "method", "runs on the front", "front covered", "covered off the hull", "hypervolume share"]
    return table(
        f"{settings['starts']} runs each, within {settings['near']:g} of the front, mean over seeds", columns, rows
    )


def _chart(settings: Mapping[str, Any], name: str, reached: Reached) -> dict[str, Any]:
    front = FRONTS[name].front(200).T.tolist()
    series = [curve("known front", *front)]
    for method in settings["methods"]:
        points = [point for run in reached[name, method] for point in run]
        series.append(dots(METHODS[method].title, [p[0] for p in points], [p[1] for p in points]))
    return chart(f"{FRONTS[name].title}: where the runs of all seeds end", "f1", "f2", series)


STUDY = Study(
    name="pareto-front",
    title="Which part of a Pareto front is found",
    claim=(
        "Section 3: linear scalarisation is limited to the convex hull of the Pareto front, whereas multi-gradient "
        "methods, the variance-reduced ones included, can uncover the front. The paper shows no experiment."
    ),
    settings={
        "problems": ("fonseca-fleming", "quarter-circle", "dtlz2", "two-bowls"),
        "methods": ("stimulus", "smgd", *SCALARISED),
        "starts": 30,
        "steps": 200,
        "n": 100,
        "noise": 0.3,
        "lr": 0.2,
        "adam_lr": 0.03,
        "near": 0.06,
        "front_points": 201,
        "covers": 0.8,
        "misses": 0.2,
    },
    quick={
        "problems": ("fonseca-fleming", "quarter-circle"),
        "methods": ("stimulus", "vr-scalarisation"),
        "starts": 12,
        "steps": 150,
        "near": 0.1,
    },
    run=run,
)
