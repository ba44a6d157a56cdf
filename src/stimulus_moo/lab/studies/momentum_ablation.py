"""Study: the paper's momentum ablation on MultiMNIST, at its step size and at others."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import pairwise
from statistics import fmean
from typing import Any

from stimulus_moo import NonFiniteError, fit
from stimulus_moo.lab.experiments.multimnist import EXPERIMENT as MULTIMNIST
from stimulus_moo.lab.study import Cell, Study, verdict

SETTINGS: dict[str, Any] = {
    # The paper's step size; one at which training is stable; and the paper's if its loss is divided by the batch size
    # once more, as its table suggests: initial losses near ln(10)/96.
    "readings": {
        "lr 0.3, as stated": 0.3,
        "lr 0.03, stable": 0.03,
        "lr 0.3 on losses divided by 96": 0.3 / 96,
    },
    "divided": {"lr 0.3 on losses divided by 96": 96.0},
    "momenta": [0.1, 0.3, 0.5, 0.8],
    "iterations": [100, 200, 300, 500],
    "n": 1024,
    "batch_size": 96,
    "period": 10,
    "data": None,
}

#: A run that ends above this fraction of ln(10), the loss of a constant prediction, counts as not trained.
COLLAPSED = 0.95


def losses_at(settings: Mapping[str, Any], lr: float, momentum: float, seed: int) -> list[list[float]]:
    """Train STIMULUS-M once; return the two losses over the training set at the chosen iterations."""
    chosen = MULTIMNIST.settings.override({"n": settings["n"]})
    problem = MULTIMNIST.build(chosen, seed, settings["data"])
    iterations = settings["iterations"]
    try:
        result = fit(
            problem.model,
            problem.losses,
            problem.data,
            guard=False,  # the published method, without safeguard
            method="stimulus-m",
            lr=lr,
            momentum=momentum,
            batch_size=settings["batch_size"],
            period=settings["period"],
            steps=max(iterations),
            evaluate_every=math.gcd(*iterations),
            seed=seed,
        )
    except NonFiniteError:
        return [[math.inf, math.inf] for _ in iterations]
    records = list(result.history)
    return [records[iteration - 1]["full_losses"] for iteration in iterations]


def run(settings: Mapping[str, Any], seeds: int, cell: Cell) -> dict[str, Any]:
    """Train with every momentum at every step size, and report the paper's table for each."""
    tables, charts, findings = [], [], []
    ordered: dict[str, bool] = {}
    for reading, lr in settings["readings"].items():
        divisor = settings["divided"].get(reading, 1.0)
        rows, series = [], []
        for momentum in settings["momenta"]:
            runs = [
                cell(
                    {"lr": lr, "momentum": momentum, "seed": seed},
                    partial(losses_at, settings, lr, momentum, seed),
                )
                for seed in range(seeds)
            ]
            # mean over seeds, [iteration][task]
            means = [
                [fmean(r[i][s] for r in runs) / divisor for s in (0, 1)] for i in range(len(settings["iterations"]))
            ]
            rows.append([momentum, *(m[0] for m in means), *(m[1] for m in means)])
            series.append({"name": f"momentum {momentum}", "x": settings["iterations"], "y": [fmean(m) for m in means]})
        ends = [fmean((row[len(settings["iterations"])], row[-1])) for row in rows]
        trained = min(ends) < COLLAPSED * math.log(10) / divisor
        ordered[reading] = trained and all(later < earlier for earlier, later in pairwise(ends))
        findings.append(_finding(reading, settings["momenta"], ends, math.log(10) / divisor, ordered[reading]))
        tables.append(
            {"title": f"{reading}, mean of {seeds} seed(s)", "columns": _columns(settings), "rows": _plain(rows)}
        )
        charts.append(
            {
                "title": reading,
                "x": {"label": "iterations", "log": False},
                "y": {"label": "training loss, mean of both tasks", "log": True},
                "series": [{**line, "y": _plain([line["y"]])[0], "mode": "lines"} for line in series],
            }
        )
    return {
        "name": STUDY.name,
        "title": STUDY.title,
        "claim": STUDY.claim,
        "settings": dict(settings),
        "verdict": verdict(list(ordered.values())),
        "findings": findings,
        "tables": tables,
        "charts": charts,
    }


def _finding(reading: str, momenta: Sequence[float], ends: Sequence[float], constant: float, ordered: bool) -> str:
    stuck = [m for m, end in zip(momenta, ends, strict=True) if not end < COLLAPSED * constant]
    listed = ", ".join(f"{m}: {end:.4g}" for m, end in zip(momenta, ends, strict=True))
    order = "more momentum gives the lower loss at every step of the table" if ordered else "the order is another one"
    note = (
        f"; no training at momentum {', '.join(map(str, stuck))} (a constant answer has {constant:.4g})"
        if stuck
        else ""
    )
    return f"{reading}: final mean loss by momentum {listed}; {order}{note}."


def _columns(settings: Mapping[str, Any]) -> list[str]:
    return ["momentum", *(f"{task} at {i}" for task in ("L", "R") for i in settings["iterations"])]


def _plain(rows: Sequence[Sequence[float]]) -> list[list[float | None]]:
    return [[value if math.isfinite(value) else None for value in row] for row in rows]


STUDY = Study(
    name="momentum-ablation",
    title="Momentum ablation on MultiMNIST",
    claim="Table of the appendix: with momentum 0.1, 0.3, 0.5, 0.8 the losses of STIMULUS-M fall in that order.",
    settings=SETTINGS,
    run=run,
    quick={"n": 128, "batch_size": 16, "iterations": [20, 40], "momenta": [0.1, 0.8]},
)
