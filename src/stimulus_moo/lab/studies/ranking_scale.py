"""Study: all methods and LightGBM as rankers, on the shared queries and on generated queries with conflicting labels.

LightGBM is not a row of ``METHODS`` and cannot be part of an experiment. This study trains it on the same queries and
measures it with the same NDCG@10.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean, stdev
from typing import Any

from stimulus_moo import METHODS
from stimulus_moo.lab.experiment import COMPARED
from stimulus_moo.lab.experiments.ranking import SETTINGS
from stimulus_moo.lab.report.palette import FAMILY
from stimulus_moo.lab.studies.lambdarank import NOT_INSTALLED, installed
from stimulus_moo.lab.studies.ranking_runs import boosted, finished, load, tuned
from stimulus_moo.lab.studies.sheet import chart, dots, mean_or_none, page, table
from stimulus_moo.lab.study import Cell, Study, verdict

#: The data sets, with their names in texts.
SETS = {"shared": "the shared queries", "generated": "the generated queries"}
OURS = "stimulus-m+"

#: One method on one data set: its step size, and its result for every seed.
Runs = Mapping[str, tuple[float, Sequence[Mapping[str, Any]]]]
#: Row name -> NDCG@10 per label for every seed of one LightGBM booster; None if LightGBM is not installed.
Boosters = Mapping[str, Sequence[Sequence[float]] | None]


def run(settings: Mapping[str, Any], seeds: int, cell: Cell) -> dict[str, Any]:
    """Train every method and LightGBM on each data set; compare stationarity at equal queries, and NDCG@10."""
    findings, tables, charts, held = [], [], [], []
    for data in settings["sets"]:
        labels = load(settings, data, 0).labels
        runs = {}
        for method in settings["methods"]:
            lr = tuned(cell, settings, data, method)
            runs[method] = lr, [finished(cell, settings, data, method, seed, lr) for seed in range(seeds)]
        boosters = _boosters(settings, data, labels, seeds, cell)
        held.append(best_stationarity(runs))
        findings += [_stationarity(data, settings, runs), *_ranked_better(data, labels, runs, boosters)]
        tables.append(_table(data, labels, runs, boosters))
        charts.append(_chart(data, runs, boosters))
    return page(STUDY, settings, verdict([all(held)]), findings, tables, charts)


def best_stationarity(runs: Runs) -> bool:
    """Return whether STIMULUS-M+ has the lowest mean stationarity of the stochastic methods, to within 1 %.

    If the adaptive anchor uses every query, STIMULUS-M+ equals STIMULUS-M up to rounding, which must not count against
    it.
    """
    means = _stochastic(runs)
    return OURS in means and means[OURS] <= 1.01 * min(means.values())


def _stochastic(runs: Runs) -> dict[str, float]:
    """Return the mean stationarity of every stochastic method that did not diverge."""
    return {method: mean for method in runs if method != "mgd" and (mean := _mean(runs, method)) is not None}


def _mean(runs: Runs, method: str) -> float | None:
    """Return the mean stationarity over seeds, or None if one diverged."""
    found = [run["stationarity"] for run in runs[method][1]]
    return None if None in found else fmean(found)


def _boosters(settings: Mapping[str, Any], data: str, labels: Sequence[str], seeds: int, cell: Cell) -> Boosters:
    targets = {f"LightGBM on {name} alone": s for s, name in enumerate(labels)}
    return {
        name: [boosted(cell, settings, data, label, seed) for seed in range(seeds)] if installed() else None
        for name, label in {**targets, "LightGBM on the label sum": None}.items()
    }


def _stationarity(data: str, settings: Mapping[str, Any], runs: Runs) -> str:
    means = _stochastic(runs)
    own = means.pop(OURS, None)
    if own is None or not means:
        return f"On {SETS[data]}, STIMULUS-M+ or every other stochastic method diverged."
    outside = {method: mean for method, mean in means.items() if method not in FAMILY}
    best = [min(few, key=lambda method: few[method]) for few in (means, outside) if few]
    epsilon = SETTINGS.epsilon if data == "shared" else settings["epsilon"]
    named = ", ".join(f"{METHODS[method].title} {means[method]:.2g}" for method in dict.fromkeys(best))
    return (
        f"On {SETS[data]}, at equal queries evaluated, STIMULUS-M+ ends at stationarity {own:.2g} (its anchors aim at "
        f"epsilon = {epsilon}); the best other stochastic method, of all and outside the STIMULUS family: {named}."
    )


def _ranked_better(data: str, labels: Sequence[str], runs: Runs, boosters: Boosters) -> list[str]:
    """Return sentences that compare the NDCG@10 of each rival with that of STIMULUS-M+, label by label."""
    if OURS not in runs or any(run["ndcg"] is None for run in runs[OURS][1]):
        return []
    ours = [run["ndcg"] for run in runs[OURS][1]]
    own = _per_label(ours)
    rivals = {METHODS[m].title: [run["ndcg"] for run in runs[m][1]] for m in ("scalarisation-adam",) if m in runs} | {
        name: found for name, found in boosters.items() if found is not None and name.endswith("sum")
    }
    said = []
    for name, found in rivals.items():
        if None in found:
            continue
        theirs = _per_label(found)
        gains = [f"{label} {b - a:+.3f}" for label, a, b in zip(labels, own, theirs, strict=True)]
        said.append(
            f"On {SETS[data]}, {name} has mean NDCG@10 {fmean(theirs):.3f} and {_worst(found):.3f} on its worst label, "
            f"STIMULUS-M+ {fmean(own):.3f} and {_worst(ours):.3f}; by label, theirs less ours: {', '.join(gains)}."
        )
    alone = [found for name, found in boosters.items() if found is not None and name.endswith("alone")]
    if alone:
        best = [fmean(row[s] for row in found) for s, found in enumerate(alone)]
        lost = [f"{label} {b - a:+.3f}" for label, a, b in zip(labels, own, best, strict=True)]
        said.append(
            f"On {SETS[data]}, one LightGBM model per label, each measured on its own label, less STIMULUS-M+'s one "
            f"model for all: {', '.join(lost)}."
        )
    return said


def _table(data: str, labels: Sequence[str], runs: Runs, boosters: Boosters) -> dict[str, Any]:
    rows: list[list[Any]] = []
    for method, (lr, found) in runs.items():
        stationarity = _mean(runs, method)
        if stationarity is None:
            rows.append([METHODS[method].title, None, *["diverged"] * (2 + len(labels)), lr, None, None, None])
            continue
        counters = [mean_or_none([run.get(name) for run in found]) for name in ("samples", "gradients", "passes")]
        rows.append([METHODS[method].title, stationarity, *_scores([run["ndcg"] for run in found]), lr, *counters])
    for name, scores in boosters.items():
        cells = [NOT_INSTALLED] * (2 + len(labels)) if scores is None else _scores(scores)
        rows.append([name, None, *cells, None, None, None, None])
    costs = ("queries drawn", "multi-gradients", "passes")
    columns = ["ranker", "stationarity", "mean", "worst", *labels, "step size", *costs]
    return table(f"Stationarity, and NDCG@10 of held-out queries per label: {SETS[data]}", columns, rows)


def _per_label(found: Sequence[Sequence[float]]) -> list[float]:
    return [fmean(column) for column in zip(*found, strict=True)]


def _worst(found: Sequence[Sequence[float]]) -> float:
    """Return the mean over seeds of the worst label."""
    return fmean(min(row) for row in found)


def _scores(found: Sequence[Sequence[float]]) -> list[str]:
    """Return mean ± standard deviation over seeds: of the mean over labels, of the worst label, and of every label."""
    columns = [[fmean(row) for row in found], [min(row) for row in found], *zip(*found, strict=True)]
    return [_spread(column) for column in columns]


def _spread(values: Sequence[float]) -> str:
    return f"{fmean(values):.3f}" + (f" ± {stdev(values):.3f}" if len(values) > 1 else "")


def _chart(data: str, runs: Runs, boosters: Boosters) -> dict[str, Any]:
    found = {METHODS[method].title: [run["ndcg"] for run in kept] for method, (_, kept) in runs.items()}
    found |= {name: list(scores) for name, scores in boosters.items() if scores is not None}
    sound = {name: scores for name, scores in found.items() if None not in scores}
    points = [dots(name, [fmean(fmean(row) for row in scores)], [_worst(scores)]) for name, scores in sound.items()]
    return chart(f"On {SETS[data]}", "NDCG@10, mean over labels", "NDCG@10 of the worst label", points)


STUDY = Study(
    name="ranking-scale",
    title="Learning to rank beside LightGBM, and with 100,000 queries whose labels conflict",
    claim=(
        "Not in the paper. Ours: at equal queries evaluated, and with every step size tuned from one grid, STIMULUS-M+ "
        "reaches the best stationarity of the stochastic methods. The "
        "tables show which method ranks better."
    ),
    settings={
        "sets": ("shared", "generated"),
        "methods": COMPARED,
        "grid": (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0),
        "gradients": None,
        "epochs": 5,
        "epsilon": "auto",
        "queries": 100_000,
        "test_queries": 5_000,
        "documents": 20,
        "features": 30,
        "labels": 3,
        "correlation": -0.2,
        "interaction": 0.5,
        "noise": 0.5,
        "trees": 100,
        "data": None,
    },
    quick={
        "methods": ("smgd", "stimulus-m+", "scalarisation", "scalarisation-adam"),
        "grid": (0.03, 0.3),
        "gradients": 5_000,
        "queries": 1_000,
        "test_queries": 300,
        "trees": 20,
    },
    run=run,
)
