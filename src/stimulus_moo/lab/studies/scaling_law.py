"""Study: gradient evaluations to a fixed stationarity as the data set grows, MGD against STIMULUS."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from stimulus_moo import METHODS
from stimulus_moo.lab.studies.least_squares import power_law
from stimulus_moo.lab.studies.scaling_counts import EXACT, counted, tuned
from stimulus_moo.lab.studies.sheet import band, chart, curve, mean, mean_or_none, page, table
from stimulus_moo.lab.study import Cell, Study, verdict

#: Step sizes 1 / (2 L), with L of a single sample's loss, as in the proofs, or of the mean loss, which is larger.
STEPS = {
    "sample": "the theory's step size 1/(2L), L that of a single sample's loss",
    "mean": "the longer step 1/(2L), L that of the mean loss",
}

#: (step, method, n) -> one count per seed.
Counts = Mapping[tuple[str, str, int], Sequence[Mapping[str, Any]]]
#: (step, method) -> the exponent, or None if a run did not reach the tolerance.
Exponents = Mapping[tuple[str, str], float | None]
#: (method, n) -> the tuned scalarisation.
Baselines = Mapping[tuple[str, int], Mapping[str, Any]]


def run(settings: Mapping[str, Any], seeds: int, cell: Cell) -> dict[str, Any]:
    """Count evaluations for every size, method and seed, fit the exponents and return the verdict."""
    sizes = settings["sizes"]
    methods = {"sample": settings["methods"], "mean": settings["long_step_methods"]}
    counts = {
        (step, method, n): [counted(cell, settings, method, n, seed, step) for seed in range(seeds)]
        for step in STEPS
        for method in methods[step]
        for n in sizes
    }
    baselines = {
        (method, n): tuned(cell, settings, method, n, [found["gradients"] for found in counts["sample", "stimulus", n]])
        for method in settings["baselines"]
        for n in settings["baseline_sizes"]
        if n in sizes and mean_count(counts["sample", "stimulus", n]) is not None
    }
    exponents = {
        (step, method): exponent(sizes, [mean_count(counts[step, method, n]) for n in sizes])
        for step in STEPS
        for method in methods[step]
    }
    met = {step: bars_met(settings, step, counts, exponents) for step in STEPS}
    return page(
        STUDY,
        settings,
        verdict([met["sample"], met["mean"]]),
        [
            *(_scaling(step, settings, counts, exponents) for step in STEPS),
            *(_other(method, settings, counts, exponents) for method in methods["sample"] if method not in EXACT),
            *(_baseline(method, n, settings, counts, found) for (method, n), found in baselines.items()),
        ],
        [_evaluations(settings, counts, exponents), _steps(settings, counts, exponents), _tuned(settings, baselines)],
        [_chart(step, settings, counts, exponents) for step in STEPS],
    )


def mean_count(runs: Sequence[Mapping[str, Any]], what: str = "gradients") -> float | None:
    """Return the mean over seeds, or None if one did not reach the tolerance."""
    return mean([found[what] for found in runs]) if all(found["reached"] for found in runs) else None


def exponent(sizes: Sequence[int], counts: Sequence[float | None]) -> float | None:
    """Return the exponent of the counts against n by least squares on logarithms, or None if a count is missing.

    >>> round(exponent([4, 16, 64], [20.0, 40.0, 80.0]), 12)
    0.5
    """
    known = [count for count in counts if count is not None]
    return power_law(sizes, known).slope if len(known) == len(sizes) else None


def bars_met(settings: Mapping[str, Any], step: str, counts: Counts, exponents: Exponents) -> bool:
    """Return whether both exponents and the factor meet their thresholds.

    The threshold of the factor is for ``factor_at`` samples; it scales with sqrt(n) if the largest size is smaller.
    """
    slow, fast = exponents[step, "mgd"], exponents[step, "stimulus"]
    n = settings["factor_at"] if settings["factor_at"] in settings["sizes"] else max(settings["sizes"])
    times = _factor(counts, step, n)
    return (
        slow is not None
        and fast is not None
        and times is not None
        and slow >= settings["mgd_exponent"]
        and fast <= settings["stimulus_exponent"]
        and times >= settings["factor"] * math.sqrt(n / settings["factor_at"])
    )


def _factor(counts: Counts, step: str, n: int) -> float | None:
    slow, fast = (mean_count(counts[step, method, n]) for method in ("mgd", "stimulus"))
    return None if slow is None or fast is None else slow / fast


def _scaling(step: str, settings: Mapping[str, Any], counts: Counts, exponents: Exponents) -> str:
    missing = [METHODS[method].title for method in EXACT if exponents[step, method] is None]
    if missing:
        return f"At {STEPS[step]}, {' and '.join(missing)} did not reach the tolerance in every run."
    factors = ", ".join(f"{_factor(counts, step, n):.0f} at n = {n:,}" for n in settings["sizes"])
    return (
        f"At {STEPS[step]}, evaluations grow as n^{exponents[step, 'stimulus']:.2f} for STIMULUS and as "
        f"n^{exponents[step, 'mgd']:.2f} for MGD; MGD needs this many times more: {factors}."
    )


def _other(method: str, settings: Mapping[str, Any], counts: Counts, exponents: Exponents) -> str:
    title, sizes = METHODS[method].title, settings["sizes"]
    fitted = exponents["sample", method]
    if fitted is None:
        runs = [found["reached"] for n in sizes for found in counts["sample", method, n]]
        return f"{title} reaches the tolerance in {sum(runs)} of {len(runs)} runs at the theory's step size."
    largest, own = max(sizes), mean_count(counts["sample", "stimulus", max(sizes)])
    share = (mean_count(counts["sample", method, largest]) or math.nan) / (own or math.nan)
    return f"{title}: n^{fitted:.2f}, and {share:.2f} times STIMULUS's evaluations at n = {largest:,} (same step size)."


def _baseline(method: str, n: int, settings: Mapping[str, Any], counts: Counts, found: Mapping[str, Any]) -> str:
    runs = found["runs"]
    reached = sum(one["reached"] for one in runs)
    said = (
        f"{METHODS[method].title} at n = {n:,}, tuned on seed 0 (lr {found['lr']:g}, {found['schedule']}), reaches the "
        f"tolerance within {settings['budget']:g} times STIMULUS's evaluations in {reached} of {len(runs)} runs"
    )
    if reached < len(runs):
        left = [one["stationarity"] for one in runs if one["stationarity"] is not None]
        return f"{said}; the largest stationarity left is {max(left):.1e}." if left else f"{said}; it diverged."
    spent = mean([one["gradients"] for one in runs])
    shares = []
    for step, words in (("sample", "the theory's step"), ("mean", "the longer step")):
        own = mean_count(counts[step, "stimulus", n])
        if own is not None:
            shares.append(f"{spent / own:.2f} times STIMULUS's at {words}")
    return f"{said}, with {' and '.join(shares)}."


def _evaluations(settings: Mapping[str, Any], counts: Counts, exponents: Exponents) -> dict[str, Any]:
    sizes = settings["sizes"]
    rows: list[list[Any]] = []
    for (step, method), fitted in exponents.items():
        means = [mean_count(counts[step, method, n]) for n in sizes]
        rows.append([METHODS[method].title, step, *(_rounded(m, 0) for m in means), _rounded(fitted, 3)])
    for step in STEPS:
        rows.append(["MGD / STIMULUS", step, *(_rounded(_factor(counts, step, n), 1) for n in sizes), None])
    title = f"Gradient evaluations to ||d||^2 <= {settings['tolerance']:g}, mean over seeds"
    return table(title, ["method", "L of", *(f"n = {n:,}" for n in sizes), "exponent"], rows)


def _steps(settings: Mapping[str, Any], counts: Counts, exponents: Exponents) -> dict[str, Any]:
    sizes = settings["sizes"]
    rows = [
        [METHODS[method].title, step, *(_rounded(mean_count(counts[step, method, n], "steps"), 0) for n in sizes)]
        for step, method in exponents
    ]
    return table("Steps to the tolerance, mean over seeds", ["method", "L of", *(f"n = {n:,}" for n in sizes)], rows)


def _tuned(settings: Mapping[str, Any], baselines: Baselines) -> dict[str, Any]:
    rows: list[list[Any]] = []
    for (method, n), found in baselines.items():
        runs = found["runs"]
        left = [one["stationarity"] for one in runs if one["stationarity"] is not None]
        choice = [METHODS[method].title, n, found["lr"], found["schedule"]]
        reached = [sum(one["reached"] for one in runs), len(runs)]
        costs = [mean_or_none([one.get(name) for one in runs]) for name in ("gradients", "passes")]
        rows.append([*choice, *reached, *costs, max(left, default=None)])
    return table(
        f"Scalarisation (mean loss), tuned on seed 0, with up to {settings['budget']:g} times STIMULUS's evaluations",
        ["method", "n", "lr", "schedule", "reached", "of", "evaluations", "passes", "largest stationarity left"],
        rows,
    )


def _rounded(value: float | None, digits: int) -> float | int | None:
    if value is None:
        return None
    return round(value, digits) if digits else round(value)


def _chart(step: str, settings: Mapping[str, Any], counts: Counts, exponents: Exponents) -> dict[str, Any]:
    sizes, series = settings["sizes"], []
    for method in [name for chosen, name in exponents if chosen == step and exponents[step, name] is not None]:
        by_size = [[found["gradients"] for found in counts[step, method, n]] for n in sizes]
        series.append(band(METHODS[method].title, sizes, list(zip(*by_size, strict=True))))
        if method in EXACT:
            law = power_law(sizes, series[-1]["y"])
            fitted = [math.exp(law.intercept) * n**law.slope for n in sizes]
            series.append(curve(f"{METHODS[method].title}: n^{law.slope:.2f}", sizes, fitted))
    return chart(f"At {STEPS[step]}", "samples n", "gradient evaluations", series, log="xy")


STUDY = Study(
    name="scaling-law",
    title="Gradient evaluations against the size of the data",
    claim=(
        "Corollary 1: STIMULUS finds an epsilon-stationary point with O(n + sqrt(n) / epsilon) evaluations, MGD with "
        "O(n / epsilon), so that their ratio grows as sqrt(n). The paper does not show it."
    ),
    settings={
        "sizes": (1024, 4096, 16384, 65536, 262144),
        "tolerance": 1e-6,
        "dimension": 20,
        "decay": 1.0,
        "regulariser": 1e-3,
        "max_steps": 10000,
        "methods": ("mgd", "stimulus", "stimulus+", "vr-scalarisation"),
        "long_step_methods": ("mgd", "stimulus"),
        "baselines": {"scalarisation": (16.0, 4.0, 1.0, 0.25), "scalarisation-adam": (0.03, 0.01, 0.003, 0.001)},
        "baseline_sizes": (1024, 16384, 262144),
        "budget": 4.0,
        "stimulus_exponent": 0.6,
        "mgd_exponent": 0.9,
        "factor": 40.0,
        "factor_at": 65536,
    },
    quick={
        "sizes": (256, 1024, 4096),
        "tolerance": 1e-5,
        "methods": ("mgd", "stimulus", "stimulus+"),
        "baselines": {"scalarisation": (4.0,), "scalarisation-adam": (0.03,)},
        "baseline_sizes": (1024,),
    },
    run=run,
)
