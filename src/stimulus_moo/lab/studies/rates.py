"""Study: the convergence rates of the theorems, 1/T for nonconvex and exponential for strongly convex objectives."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from stimulus_moo import METHODS
from stimulus_moo.lab.studies.least_squares import Line, line, power_law
from stimulus_moo.lab.studies.rate_runs import constant_step, distances, expected_pick, shrinking_step
from stimulus_moo.lab.studies.sheet import band, chart, mean, page, table
from stimulus_moo.lab.study import Cell, Study

#: Methods with a rate of 1/T in theory, and those with slower rates.
FAST = ("mgd", "stimulus")
SLOW = ("smgd", "moco", "cr-mogm")

#: Settings that the cells of each part depend on.
_NONCONVEX = ("n", "horizons", "dimension", "decay", "regulariser")
_CONVEX = ("ridge_n", "ridge_steps", "ridge_dimension", "objectives", "ridge")

#: (method, "constant" or "1/sqrt(T)") -> average stationarity per horizon, one list per seed that did not diverge.
Averages = Mapping[tuple[str, str], Sequence[Sequence[float]]]
#: method -> results of ``distances``, one per seed that did not diverge.
Followed = Mapping[str, Sequence[Mapping[str, Any]]]


def run(settings: Mapping[str, Any], seeds: int, cell: Cell) -> dict[str, Any]:
    """Run both parts, fit exponents and lines, and return the verdict."""
    averages = _nonconvex(settings, seeds, cell)
    exponents = {key: power_law(settings["horizons"], _means(runs)) for key, runs in averages.items() if runs}
    followed = _strongly_convex(settings, seeds, cell)
    lines = {method: [straight(found, settings["floor"]) for found in runs] for method, runs in followed.items()}
    met = {
        "1/T": fast_enough(settings, exponents),
        "slower": others_slower(settings, exponents),
        "linear": linear(settings, followed, lines),
    }
    return page(
        STUDY,
        settings,
        verdict(met.values()),
        [_about_fast(exponents), _about_slow(settings, exponents), *_about_lines(settings, followed, lines)],
        [_exponent_table(settings, averages, exponents), _line_table(settings, followed, lines)],
        [_average_chart(settings, averages), _distance_chart(followed)],
    )


def _nonconvex(settings: Mapping[str, Any], seeds: int, cell: Cell) -> Averages:
    common = {"part": "nonconvex", **{name: settings[name] for name in _NONCONVEX}}
    averages: dict[tuple[str, str], list[Sequence[float]]] = {}
    for method in (*FAST, *SLOW):
        keys = [{"method": method, "seed": seed, "step": "constant", **common} for seed in range(seeds)]
        found = [cell(key, partial(constant_step, settings, method, key["seed"])) for key in keys]
        averages[method, "constant"] = [values for values in found if values is not None]

    def shrinking(method: str, seed: int, horizon: int, lr: float | None) -> Any:
        key = {"method": method, "seed": seed, "step": "1/sqrt(T)", "horizon": horizon, "lr": lr, **common}
        return cell(key, partial(shrinking_step, settings, method, horizon, seed, lr))

    chosen: dict[str, float | None] = dict.fromkeys(("mgd", *SLOW))
    for method, grid in settings["baselines"].items():
        trials = {lr: shrinking(method, 0, max(settings["horizons"]), lr) for lr in grid}
        chosen[method] = min(grid, key=lambda lr: math.inf if trials[lr] is None else trials[lr])
    for method, lr in chosen.items():
        found = [[shrinking(method, seed, T, lr) for T in settings["horizons"]] for seed in range(seeds)]
        averages[method, "1/sqrt(T)"] = [values for values in found if None not in values]
    return averages


def _strongly_convex(settings: Mapping[str, Any], seeds: int, cell: Cell) -> Followed:
    common = {"part": "strongly convex", **{name: settings[name] for name in _CONVEX}}

    def one(method: str, seed: int, lr: float | None) -> Any:
        key = {"method": method, "seed": seed, "lr": lr, **common}
        return cell(key, partial(distances, settings, method, seed, lr))

    followed: dict[str, list[Mapping[str, Any]]] = {}
    for method in (*FAST, *SLOW):
        followed[method] = [found for seed in range(seeds) if (found := one(method, seed, None)) is not None]
    for method, grid in settings["ridge_baselines"].items():
        ends = {lr: math.inf if (found := one(method, 0, lr)) is None else found["distance"][-1] for lr in grid}
        best = min(grid, key=lambda lr: ends[lr])
        followed[method] = [found for seed in range(seeds) if (found := one(method, seed, best)) is not None]
    return followed


def straight(found: Mapping[str, Any], floor: float) -> Line:
    """Return the line through log distance^2 against the step, down to the resolution of the distances."""
    points = [(i * found["every"], 2.0 * math.log(d)) for i, d in enumerate(found["distance"]) if d > floor]
    return line([step for step, _ in points], [value for _, value in points])


def fast_enough(settings: Mapping[str, Any], exponents: Mapping[tuple[str, str], Line]) -> bool:
    """Return whether the exponents of MGD and STIMULUS are at most -1 + ``exponent_margin``."""
    fitted = [exponents.get((method, "constant")) for method in FAST]
    return all(one is not None and one.slope <= -1.0 + settings["exponent_margin"] for one in fitted)


def others_slower(settings: Mapping[str, Any], exponents: Mapping[tuple[str, str], Line]) -> bool:
    """Return whether SMGD, MoCo and CR-MOGM are slower, both at the step sizes of their theory and at MGD's.

    With steps proportional to 1/sqrt(T), their exponents must exceed the threshold of ``fast_enough``. With MGD's
    constant step, they must exceed that of STIMULUS by ``slower_margin``: the first condition alone could be an effect
    of the shorter steps.
    """
    own = exponents.get(("stimulus", "constant"))
    shrinking = [exponents.get((method, "1/sqrt(T)")) for method in SLOW]
    constant = [exponents.get((method, "constant")) for method in SLOW]
    return (
        own is not None
        and all(one is None or one.slope > -1.0 + settings["exponent_margin"] for one in shrinking)
        and all(one is None or one.slope >= own.slope + settings["slower_margin"] for one in constant)
    )


def linear(settings: Mapping[str, Any], followed: Followed, lines: Mapping[str, Sequence[Line]]) -> bool:
    """Return whether MGD and STIMULUS fall linearly in log scale, at least as steeply as the theorem's -3 mu lr / 4."""
    return all(
        bool(lines[method])
        and all(
            fitted.r_squared >= settings["r_squared"] and fitted.slope <= -found["rate"]
            for found, fitted in zip(followed[method], lines[method], strict=True)
        )
        for method in FAST
    )


def verdict(met: Any) -> str:
    """Return "holds" if every rule is met."""
    return "holds" if all(met) else "does not hold"


def _means(runs: Sequence[Sequence[float]]) -> list[float]:
    return [mean(values) for values in zip(*runs, strict=True)]


def _about_fast(exponents: Mapping[tuple[str, str], Line]) -> str:
    said = [
        f"{METHODS[method].title} T^{exponents[method, 'constant'].slope:.2f}"
        for method in FAST
        if (method, "constant") in exponents
    ]
    return f"Nonconvex, constant step 1/(2L): the average stationarity over T steps falls as {', '.join(said)}."


def _about_slow(settings: Mapping[str, Any], exponents: Mapping[tuple[str, str], Line]) -> str:
    def listed(step: str, methods: Sequence[str]) -> str:
        return ", ".join(
            f"{METHODS[m].title} T^{exponents[m, step].slope:.2f}" for m in methods if (m, step) in exponents
        )

    return (
        f"With steps proportional to 1/sqrt(T), as their theory requires: {listed('1/sqrt(T)', SLOW)}; with the same "
        f"steps {listed('1/sqrt(T)', ('mgd',))} and, tuned, {listed('1/sqrt(T)', list(settings['baselines']))}. With "
        f"MGD's constant step: {listed('constant', SLOW)}."
    )


def _about_lines(settings: Mapping[str, Any], followed: Followed, lines: Mapping[str, Sequence[Line]]) -> list[str]:
    said = []
    for method in followed:
        if not followed[method]:
            said.append(f"{METHODS[method].title} diverged on the ridge problem.")
            continue
        steepest = mean([fitted.slope for fitted in lines[method]])
        fits = min(fitted.r_squared for fitted in lines[method])
        end = mean([found["distance"][-1] for found in followed[method]])
        text = f"{METHODS[method].title}: distance to the Pareto set {end:.1e} after {settings['ridge_steps']} steps"
        if method in FAST:
            picked = mean([found["picked"] for found in followed[method]])
            clock = math.sqrt(mean([_clock(found) for found in followed[method]]))
            rate = mean([found["rate"] for found in followed[method]])
            text += (
                f", squared distance as exp({steepest:.4f} t) with R^2 of at least {fits:.4f} (the theorem: "
                f"exp({-rate:.4f} t)); the random clock's iterates are at {picked:.1e} on average, and at {clock:.1e} "
                "in root mean square over all its draws, dominated by rare early draws"
            )
        said.append(f"{text}.")
    return said


def _clock(found: Mapping[str, Any]) -> float:
    return expected_pick(found["distance"], found["every"], found["rate"])


def _exponent_table(
    settings: Mapping[str, Any], averages: Averages, exponents: Mapping[tuple[str, str], Line]
) -> dict[str, Any]:
    rows: list[list[Any]] = []
    for (method, step), fitted in exponents.items():
        values = [float(f"{value:.4g}") for value in _means(averages[method, step])]
        rows.append([METHODS[method].title, step, *values, round(fitted.slope, 3), round(fitted.r_squared, 4)])
    columns = ["method", "step size", *(f"T = {horizon}" for horizon in settings["horizons"]), "exponent", "R^2"]
    return table("Average stationarity over T steps, nonconvex logistic regression, mean over seeds", columns, rows)


def _line_table(settings: Mapping[str, Any], followed: Followed, lines: Mapping[str, Sequence[Line]]) -> dict[str, Any]:
    rows: list[list[Any]] = []
    for method, runs in followed.items():
        if runs:
            numbers = [
                mean([fitted.slope for fitted in lines[method]]),
                min(fitted.r_squared for fitted in lines[method]),
                -mean([found["rate"] for found in runs]),
                mean([found["distance"][-1] for found in runs]),
                mean([found["picked"] for found in runs]),
                math.sqrt(mean([_clock(found) for found in runs])),
            ]
            rows.append([METHODS[method].title, *(float(f"{number:.4g}") for number in numbers)])
    columns = ["method", "slope of log D^2", "R^2", "theorem's slope", "D, last", "D, clock", "D, clock, expected"]
    return table(f"Distance D to the Pareto set after {settings['ridge_steps']} steps, ridge regression", columns, rows)


def _average_chart(settings: Mapping[str, Any], averages: Averages) -> dict[str, Any]:
    horizons = settings["horizons"]
    series = [
        band(f"{METHODS[method].title}, {step} step", horizons, runs)
        for (method, step), runs in averages.items()
        if runs
    ]
    return chart("Nonconvex: average stationarity", "steps T", "average of ||d||^2 over T steps", series, log="xy")


def _distance_chart(followed: Followed) -> dict[str, Any]:
    series = []
    for method, runs in followed.items():
        if runs:
            steps = [i * runs[0]["every"] for i in range(len(runs[0]["distance"]))]
            series.append(band(METHODS[method].title, steps, [found["distance"] for found in runs]))
            if method in FAST:
                clocks = [
                    [
                        math.sqrt(expected_pick(found["distance"][: i + 1], found["every"], found["rate"]))
                        for i in range(len(steps))
                    ]
                    for found in runs
                ]
                series.append(band(f"{METHODS[method].title}, random clock", steps, clocks))
    return chart("Strongly convex: distance to the Pareto set", "steps", "distance", series, log="y")


STUDY = Study(
    name="rates",
    title="Rates of convergence",
    claim=(
        "Theorems 1 and 2: with a constant step size the average stationarity of STIMULUS falls as 1/T like that of "
        "MGD, faster than SMGD, MoCo and CR-MOGM; with strongly convex objectives the distance to a Pareto-optimal "
        "point falls exponentially. The paper shows neither."
    ),
    settings={
        "horizons": (64, 128, 256, 512, 1024, 2048),
        "n": 256,
        "dimension": 20,
        "decay": 1.0,
        "regulariser": 1e-3,
        "baselines": {"scalarisation": (32.0, 8.0, 2.0), "scalarisation-adam": (0.3, 0.1, 0.03)},
        "ridge_n": 1024,
        "ridge_steps": 2000,
        "ridge_dimension": 10,
        "objectives": 2,
        "ridge": 0.5,
        "ridge_baselines": {"scalarisation": (0.05, 0.005, 0.0015), "scalarisation-adam": (0.1, 0.03, 0.01)},
        "floor": 1e-8,
        "exponent_margin": 0.2,
        "slower_margin": 0.1,
        "r_squared": 0.98,
    },
    quick={
        "horizons": (32, 64, 128, 256),
        "ridge_n": 256,
        "ridge_steps": 400,
        "baselines": {"scalarisation": (8.0,)},
        "ridge_baselines": {"scalarisation-adam": (0.03,)},
    },
    run=run,
)
