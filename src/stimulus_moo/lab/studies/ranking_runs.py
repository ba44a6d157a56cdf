"""Runs of the study ranking-scale: one method or one LightGBM booster on one data set, with its test NDCG."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from functools import lru_cache
from statistics import fmean
from typing import Any

import numpy as np

from stimulus_moo import NonFiniteError, fit
from stimulus_moo.lab.data import RankingSplits, load_ltr
from stimulus_moo.lab.experiment import ExperimentSettings
from stimulus_moo.lab.experiments.ranking import NDCG, SETTINGS, RankingSettings, build, ranking_problem
from stimulus_moo.lab.problem import Problem
from stimulus_moo.lab.studies.lambdarank import lambdarank_ndcg
from stimulus_moo.lab.study import Cell
from stimulus_moo.lab.synthetic.conflicting_queries import conflicting_queries

TUNING_SEED = 100  # not used by comparisons
_TEST_SEEDS = 1_000_000  # offset of the seeds of test queries
_ANCHOR_BATCH = 2048

#: Settings of the generated data; its cells depend on them.
_GENERATED = ("queries", "test_queries", "documents", "features", "labels", "correlation", "interaction", "noise")


def finished(cell: Cell, settings: Mapping[str, Any], data: str, method: str, seed: int, lr: float) -> dict[str, Any]:
    """Return the result of ``train``, from the stored cells if available."""
    key = {"data": data, "method": method, "seed": seed, "lr": lr, **_depends(settings, data, "gradients")}
    found: dict[str, Any] = cell(key, lambda: train(settings, data, method, seed, lr))
    return found


def tuned(cell: Cell, settings: Mapping[str, Any], data: str, method: str) -> float:
    """Return the step size of a method: the experiment's own for the shared data, otherwise the best of the grid.

    The best has the lowest mean training loss on a seed that the comparison does not use, as in ``stimulus-moo tune``.
    A diverged run has an infinite loss.
    """
    if data == "shared":
        own: float = SETTINGS.for_method(method)["lr"]
        return own
    trials = {lr: finished(cell, settings, data, method, TUNING_SEED, lr)["losses"] for lr in settings["grid"]}
    sound = {lr: fmean(losses) for lr, losses in trials.items() if losses is not None}
    return min(sound, key=lambda lr: sound[lr]) if sound else float(settings["grid"][0])


def boosted(cell: Cell, settings: Mapping[str, Any], data: str, label: int | None, seed: int) -> list[float]:
    """Return the test NDCG@10 of a LightGBM booster, from the stored cells if available."""

    def compute() -> list[float]:
        splits = load(settings, data, seed)
        found: list[float] = lambdarank_ndcg(
            splits.train, splits.test, label, trees=settings["trees"], seed=seed
        ).tolist()
        return found

    key = {"data": data, "method": "lightgbm", "label": label, "seed": seed, **_depends(settings, data, "trees")}
    kept: list[float] = cell(key, compute)
    return kept


def train(settings: Mapping[str, Any], data: str, method: str, seed: int, lr: float) -> dict[str, Any]:
    """Train one method with one seed, and return its losses, stationarity, counters and test NDCG@10 per label.

    All values except the counters are None for a diverged run.
    """
    problem, options = _problem(settings, data, seed)
    try:
        result = fit(
            problem.model,
            problem.losses,
            problem.data,
            seed=seed,
            anchor_batch=_ANCHOR_BATCH,
            progress=False,
            **{**options.for_method(method), "lr": lr, "evaluate_every": None},
        )
    except NonFiniteError:
        return dict.fromkeys(("losses", "stationarity", "samples", "gradients", "passes", "ndcg"))
    assert problem.test is not None
    return {
        "losses": result.losses,
        "stationarity": result.stationarity,
        "samples": result.samples,
        "gradients": result.gradients,
        "passes": result.passes,
        "ndcg": problem.test(problem.model)[NDCG],
    }


@lru_cache(maxsize=1)
def _generated(sizes: tuple[tuple[str, Any], ...], seed: int) -> RankingSplits:
    options = dict(sizes)
    queries, test_queries = options.pop("queries"), options.pop("test_queries")
    return RankingSplits(
        train=conflicting_queries(queries, **options, seed=seed),
        test=conflicting_queries(test_queries, **options, seed=_TEST_SEEDS + seed),
        labels=tuple(f"label {s}" for s in range(options["labels"])),
        source=f"generated with seed {seed}",
    )


def load(settings: Mapping[str, Any], data: str, seed: int) -> RankingSplits:
    """Return the data of one seed; the shared data does not depend on it."""
    if data == "shared":
        own = _own(settings)
        return load_ltr(columns=own.columns, grades=own.grades, data=settings["data"])
    return _generated(tuple((name, settings[name]) for name in _GENERATED), seed)


def _problem(settings: Mapping[str, Any], data: str, seed: int) -> tuple[Problem, ExperimentSettings]:
    """Return the problem and its training settings; for the shared data, those of the experiment ``ranking``."""
    if data == "shared":
        own = _own(settings)
        return build(own, seed, settings["data"]), own
    root = int(np.ceil(np.sqrt(settings["queries"])))
    budget = settings["gradients"] or settings["epochs"] * settings["queries"]
    options = ExperimentSettings(
        lr=0.1, momentum=0.5, batch_size=root, period=root, gradients=budget, epsilon=settings["epsilon"]
    )
    return ranking_problem(load(settings, data, seed), synthetic=True), options


def _own(settings: Mapping[str, Any]) -> RankingSettings:
    """Return the experiment's settings, with the study's budget if it has one."""
    return dataclasses.replace(SETTINGS, gradients=settings["gradients"] or SETTINGS.gradients)


def _depends(settings: Mapping[str, Any], data: str, *more: str) -> dict[str, Any]:
    names: Sequence[str] = more if data == "shared" else (*more, "epochs", "epsilon", *_GENERATED)
    return {name: settings[name] for name in names}
