"""Runs made of formulas, in the shape that load_runs returns, for figures and reports."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from stimulus_moo import METHODS
from stimulus_moo.lab.runs.reading import RecordedRun

ELEVEN = tuple(name for name in METHODS if not name.startswith(("page", "vr-")))
N, BATCH, PERIOD = 128, 8, 10
EVIL = "<script>alert(1)</script>\"'&"


def fake_run(
    method: str,
    seed: int,
    tasks: tuple[str, ...],
    *,
    experiment: str = "fake",
    steps: int = 600,
    every: int = 10,
    diverge: bool = False,
    **settings: Any,
) -> RecordedRun:
    rng = np.random.default_rng([seed, *method.encode(), steps])
    rate = 1.0 + 0.12 * (list(METHODS).index(method) if method in METHODS else 3) + 2.0 * settings.get("momentum", 0.0)
    start = 1.0 + np.linspace(0, 1, len(tasks)) ** 2
    drift = rng.normal(0, 0.05, len(tasks))
    records: list[dict[str, Any]] = []
    samples = gradients = passes = 0
    per_gradient = 1 if "scalarisation" in method else len(tasks)
    weights = np.full(len(tasks), 1 / len(tasks))
    for t in range(steps):
        drawn, spent = _cost(method, t, rng)
        samples, gradients, passes = samples + drawn, gradients + spent, passes + spent * per_gradient
        if "scalarisation" not in method:
            weights = rng.dirichlet(np.full(len(tasks), 3.0) * (1 + np.arange(len(tasks)) % 3))
        progress = np.exp(-rate * 3 * (t + 1) / steps)
        losses = start * (0.05 + 0.95 * progress) * np.exp(drift)
        record = {"step": t, "samples": samples, "gradients": gradients, "passes": passes, "losses": losses.tolist()}
        record["seconds"] = (1.5 + seed) * (t + 1) / steps
        record |= {"weights": weights.tolist(), "sq_norm": float(progress**2), "anchored": t % PERIOD == 0}
        if (t + 1) % every == 0:
            record |= {"full_losses": losses.tolist(), "stationarity": float(progress**2 * np.exp(rng.normal(0, 0.3)))}
        records.append(record)
        if diverge and t == steps // 2:
            break
    accuracy = np.clip(1 - losses / 4, 0, 1).tolist()
    ended = {"diverged": True, "error": "loss 0 is inf at step 300", "stopped": "diverged"} if diverge else {}
    summary = {
        **records[-1],
        "method": method,
        "test": {"accuracy": accuracy},
        "diverged": False,
    }
    return RecordedRun(experiment, method, seed, _settings(experiment, method, seed, tasks, steps, settings), records,
               {**summary, **ended}, Path("nowhere"))  # fmt: skip


def fake_runs(tasks: int, methods: tuple[str, ...] = ELEVEN, seeds: int = 3, **options: Any) -> list[RecordedRun]:
    names = tuple(f"target {s + 1}" for s in range(tasks))
    return [fake_run(method, seed, names, **options) for method in methods for seed in range(seeds)]


def fake_study(name: str = "scaling-law") -> dict[str, Any]:
    n = [1024, 4096, 16384, 65536]
    lines = {"MGD": 1e3, "STIMULUS": 4e3}
    series = [
        {"name": title, "x": n, "y": [scale * k ** (1.0 if title == "MGD" else 0.5) for k in n], "mode": "lines"}
        for title, scale in lines.items()
    ]
    series[0] |= {"low": [0.8 * y for y in series[0]["y"]], "high": [1.2 * y for y in series[0]["y"]]}
    dots = {"name": "measured", "x": n, "y": [5e5, 1e6, None, 4e6], "mode": "markers"}
    return {
        "name": name,
        "title": "The square-root law",
        "claim": "Gradient evaluations grow with the square root of n.",
        "settings": {"tolerance": 1e-6, "n": n},
        "seeds": 3,
        "verdict": "holds with another step size",
        "findings": ["The exponent of STIMULUS is 0.52.", "That of MGD is 0.98."],
        "tables": [{"title": "Exponents", "columns": ["", "exponent"], "rows": [["MGD", 0.98], ["STIMULUS", None]]}],
        "charts": [
            {"title": "Cost to 1e-6", "x": {"label": "n", "log": True}, "y": {"label": "gradients", "log": True},
             "series": [*series, dots]}
        ],
    }  # fmt: skip


def store(runs: list[RecordedRun], studies: list[dict[str, Any]], folder: Path) -> Path:
    """Write runs and studies as the runner does."""
    for i, run in enumerate(runs):
        home = folder / str(i)
        home.mkdir(parents=True)
        (home / "settings.json").write_text(json.dumps(run.settings))
        (home / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in run.records))
        (home / "summary.json").write_text(json.dumps(run.summary))
    for i, study in enumerate(studies):
        (folder / f"study-{i}").mkdir(parents=True)
        (folder / f"study-{i}" / "study.json").write_text(json.dumps(study))
    return folder


def _cost(method: str, t: int, rng: np.random.Generator) -> tuple[int, int]:
    if method == "mgd":
        return N, N
    if method.startswith("stimulus"):
        anchor = N if not method.endswith("+") else int(rng.integers(40, N))
        return (anchor, anchor) if t % PERIOD == 0 else (BATCH, 2 * BATCH)
    return (BATCH, 2 * BATCH if method == "moco+" and t else BATCH)


def _settings(
    experiment: str, method: str, seed: int, tasks: tuple[str, ...], steps: int, changes: dict[str, Any]
) -> dict[str, Any]:
    return {
        "experiment": experiment,
        "method": method,
        "seed": seed,
        "title": f"{experiment.capitalize()}, {len(tasks)} tasks",
        "claim": "Figure 3: the STIMULUS family reaches lower losses than MoCo and CR-MOGM.",
        "steps": steps,
        "lr": 0.05,
        "momentum": 0.5,
        "batch_size": BATCH,
        "period": PERIOD,
        "n": N,
        "data": "made by a formula",
        "synthetic": True,
        "tasks": list(tasks),
        "n_train": N,
        "versions": {"python": "3.11.2", "stimulus_moo": "0.1.0", "torch": "2.13.0"},
        "threads": 1,
        "machine": {"system": "Linux", "processor": "x86_64", "cores": 2},
        "started": "2025-01-02T03:04:05+00:00",
        **changes,
    }
