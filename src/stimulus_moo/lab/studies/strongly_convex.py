"""Study: the paper's strongly convex example, f_1 = x^2 and f_2 = exp(-x) with noise on the gradients (appendix)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from stimulus_moo import METHODS, NonFiniteError, Progress, fit
from stimulus_moo.lab.studies.sheet import band, chart, mean, page, table
from stimulus_moo.lab.study import Cell, Study, verdict
from stimulus_moo.lab.synthetic.parabola import distance, objectives, parabola

#: The paper's two groups: "the momentum-based algorithms exhibited faster convergence compared to" the others.
MOMENTUM = ("moco", "stimulus-m", "stimulus-m+")
PLAIN = ("mgd", "smgd", "stimulus", "stimulus+")

#: Settings that every run depends on, and those of single methods.
_COMMON = ("lr", "steps", "momentum", "n", "batch_size", "period", "start", "noise", "epsilon")
_OWN = {"moco": ("beta", "gamma"), "cr-mogm": ("alpha",)}

#: One trajectory of x per seed; None if the run diverged.
Paths = Sequence[list[float] | None]


def run(settings: Mapping[str, Any], seeds: int, cell: Cell) -> dict[str, Any]:
    """Run every method at the paper's step sizes and at the alternatives, compare the groups and return the verdict."""
    cases = [{**settings, **changes} for changes in ({}, *settings["alternatives"])]
    paths = [{m: _paths(cell, case, m, seeds) for m in settings["methods"]} for case in cases]
    tuned = {}
    for method, grid in settings["baselines"].items():
        trials = {lr: _paths(cell, {**settings, "lr": lr}, method, seeds) for lr in grid}
        best = min(grid, key=lambda lr: _or_never(settings, steps_to(settings, trials[lr])))
        tuned[method] = (best, trials[best])
    pairs = list(zip(cases, paths, strict=True))
    return page(
        STUDY,
        settings,
        verdict([all_converge(case, found) and momentum_faster(case, found) for case, found in pairs]),
        [
            *(_converged(case, found) for case, found in pairs),
            *(_groups(case, found) for case, found in pairs),
            *_apart(paths[0]),
            *(_tuned(settings, method, *choice) for method, choice in tuned.items()),
        ],
        [_table(settings, pairs, tuned)],
        [_chart(case, found, s) for case, found in pairs for s in (0, 1)],
    )


def follow(settings: Mapping[str, Any], method: str, seed: int) -> list[float] | None:
    """Return x_0, x_1, ..., x_T of one run, or None if it diverged."""
    problem = parabola(settings["n"], seed=seed, start=settings["start"], noise=settings["noise"])
    visited = [float(settings["start"])]

    def record(told: Progress) -> None:
        visited.append(next(told.model.parameters()).item())

    names = ("lr", "steps", "momentum", "batch_size", "period", "epsilon", "beta", "gamma", "alpha")
    options = {name: settings[name] for name in names}
    try:
        fit(
            problem.model,
            problem.losses,
            problem.data,
            guard=False,  # the published method, without safeguard
            method=method,
            seed=seed,
            callbacks=[record],
            progress=False,
            **options,
        )
    except NonFiniteError:
        return None
    return visited


def steps_to(settings: Mapping[str, Any], paths: Paths) -> float | None:
    """Return the mean over seeds of the first step within ``near`` of the Pareto set, or None if one never is."""
    firsts = []
    for path in paths:
        first = None if path is None else next((t for t, x in enumerate(path) if distance(x) <= settings["near"]), None)
        if first is None:
            return None
        firsts.append(first)
    return mean(firsts)


def all_converge(settings: Mapping[str, Any], paths: Mapping[str, Paths]) -> bool:
    """Return whether every method ends within ``near`` of the Pareto set, for every seed."""
    return not any(_far(settings, runs) for runs in paths.values())


def momentum_faster(settings: Mapping[str, Any], paths: Mapping[str, Paths]) -> bool:
    """Return whether each of MoCo, STIMULUS-M and STIMULUS-M+ needs fewer steps than each plain method."""
    fast, slow = ([_or_never(settings, steps_to(settings, paths[m])) for m in group] for group in (MOMENTUM, PLAIN))
    return max(fast) < min(slow)


def _paths(cell: Cell, settings: Mapping[str, Any], method: str, seeds: int) -> Paths:
    names = (*_COMMON, *_OWN.get(method, ()))
    keys = [{"method": method, "seed": seed, **{name: settings[name] for name in names}} for seed in range(seeds)]
    return [cell(key, partial(follow, settings, method, seed)) for seed, key in enumerate(keys)]


def _or_never(settings: Mapping[str, Any], steps: float | None) -> float:
    return float(settings["steps"] + 1) if steps is None else steps


def _far(settings: Mapping[str, Any], runs: Paths) -> int:
    return sum(path is None or distance(path[-1]) > settings["near"] for path in runs)


def _named(case: Mapping[str, Any]) -> str:
    return f"step size {case['lr']:g} (MoCo: gamma {case['gamma']:g})"


def _converged(case: Mapping[str, Any], paths: Mapping[str, Paths]) -> str:
    failed = [f"{METHODS[m].title} ({_far(case, runs)} seeds)" for m, runs in paths.items() if _far(case, runs)]
    ending = f"all but {', '.join(failed)} end" if failed else f"all {len(paths)} methods end, for every seed,"
    return f"At {_named(case)}, {ending} within {case['near']:g} of the Pareto set after {case['steps']} steps."


def _groups(case: Mapping[str, Any], paths: Mapping[str, Paths]) -> str:
    def listed(group: Sequence[str]) -> str:
        found = {m: steps_to(case, paths[m]) for m in group}
        return ", ".join(f"{METHODS[m].title} {'never' if t is None else f'{t:.0f}'}" for m, t in found.items())

    answer = "Each" if momentum_faster(case, paths) else "Not each"
    return (
        f"{answer} momentum method is faster than each plain one at {_named(case)}; mean steps to within "
        f"{case['near']:g} of the Pareto set: {listed(MOMENTUM)}; against {listed(PLAIN)}."
    )


def _apart(paths: Mapping[str, Paths]) -> list[str]:
    """Return the distance of STIMULUS from MGD: noise independent of x cancels in the recursive difference."""
    pairs = zip(paths["mgd"], paths["stimulus"], strict=True)
    gaps = [abs(a - b) for mgd, own in pairs if mgd and own for a, b in zip(mgd, own, strict=True)]
    if not gaps:
        return []
    return [
        f"The paths of STIMULUS and MGD are at most {max(gaps):.1e} apart: noise added to the gradient cancels in the "
        "difference of two points, so this example cannot distinguish a variance-reduced method from the full gradient."
    ]


def _tuned(settings: Mapping[str, Any], method: str, lr: float, runs: Paths) -> str:
    steps = steps_to(settings, runs)
    came = "never comes" if steps is None else f"comes in {steps:.0f} steps"
    choices = len(settings["baselines"][method])
    return f"{METHODS[method].title}, best of {choices} step sizes ({lr:g}), {came} within {settings['near']:g}."


def _table(
    settings: Mapping[str, Any],
    pairs: Sequence[tuple[Mapping[str, Any], Mapping[str, Paths]]],
    tuned: Mapping[str, tuple[float, Paths]],
) -> dict[str, Any]:
    rows: list[list[Any]] = []

    def add(method: str, lr: float, gamma: float | None, runs: Paths) -> None:
        ends = [path[-1] for path in runs if path is not None]
        steps = steps_to(settings, runs)
        values = [(x, *objectives(x)) for x in ends]
        means: list[float | None] = [float(f"{mean(column):.4g}") for column in zip(*values, strict=True)] or [None] * 3
        rows.append([METHODS[method].title, lr, gamma, None if steps is None else round(steps), *means])

    for case, paths in pairs:
        for method, runs in paths.items():
            if case is pairs[0][0] or case["lr"] != settings["lr"] or method == "moco":
                add(method, case["lr"], case["gamma"] if method == "moco" else None, runs)
    for method, (lr, runs) in tuned.items():
        add(method, lr, None, runs)
    columns = [
        "method",
        "step size",
        "gamma",
        f"steps to within {settings['near']:g}",
        "x at the end",
        "x^2",
        "exp(-x)",
    ]
    return table(f"After {settings['steps']} steps from x = {settings['start']:g}, mean over seeds", columns, rows)


def _chart(case: Mapping[str, Any], paths: Mapping[str, Paths], s: int) -> dict[str, Any]:
    every = max(1, case["steps"] // 200)
    steps = list(range(0, case["steps"] + 1, every))
    series = []
    for method, runs in paths.items():
        known = [[objectives(x)[s] for x in path[::every]] for path in runs if path is not None]
        if known:
            series.append(band(METHODS[method].title, steps, known))
    name = ("f1 = x^2", "f2 = exp(-x)")[s]
    return chart(f"{name}, {_named(case)}", "iterations", name, series, log="y")


STUDY = Study(
    name="strongly-convex",
    title="The strongly convex example: x^2 and exp(-x)",
    claim=(
        "Appendix, figure on strongly convex optimization: all methods converge; the momentum-based ones (MoCo, "
        "STIMULUS-M, STIMULUS-M+) converge faster than MGD, SMGD, STIMULUS and STIMULUS+. Our reading: exp(-x) is not "
        "strongly convex on the line, and 'Gaussian noise with a range of (-1, 1)' is a normal number truncated to "
        "(-1, 1) on every sample's gradient, centred over the samples; n, batch, period, start and steps are ours."
    ),
    settings={
        "lr": 0.005,
        "momentum": 0.3,
        "steps": 1000,
        "start": -2.0,
        "noise": "truncated-normal",
        "n": 100,
        "batch_size": 10,
        "period": 10,
        "epsilon": 1e-3,
        "beta": 0.5,
        "gamma": 0.1,
        "alpha": 0.9,
        "near": 0.05,
        "alternatives": ({"lr": 0.05}, {"gamma": 0.001}),
        "methods": ("mgd", "smgd", "cr-mogm", "moco", "stimulus", "stimulus-m", "stimulus+", "stimulus-m+"),
        "baselines": {"scalarisation": (0.5, 0.05, 0.005), "scalarisation-adam": (0.5, 0.05, 0.005)},
    },
    quick={"steps": 600, "alternatives": (), "baselines": {"scalarisation": (0.05,), "scalarisation-adam": (0.05,)}},
    run=run,
)
