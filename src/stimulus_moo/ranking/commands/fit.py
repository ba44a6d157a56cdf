"""``rank fit``: train a ranker on files and save it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import typer

from stimulus_moo import METHODS, InvalidOption, NonFiniteError
from stimulus_moo.methods import find_method
from stimulus_moo.options import choice
from stimulus_moo.ranking.binning import FeatureLabels
from stimulus_moo.ranking.commands import arguments as options
from stimulus_moo.ranking.commands.files import Layout, read_files, with_labels
from stimulus_moo.ranking.commands.tables import print_rows
from stimulus_moo.ranking.data import RankingData
from stimulus_moo.ranking.losses import LOSSES
from stimulus_moo.ranking.ranker import MultiLabelRanker
from stimulus_moo.ranking.saving import save_ranker


def fit(
    files: options.Files,
    model: options.Model,
    layout: options.LayoutOption = Layout.AUTO,
    zero_based: options.ZeroBased = False,
    labels: options.Labels = None,
    grades: options.Grades = 5,
    method: options.Method = "auto",
    loss: options.Loss = "listnet",
    hidden: options.Hidden = None,
    lr: options.LearningRate = None,
    momentum: options.Momentum = 0.5,
    batch_size: options.BatchSize = None,
    period: options.Period = None,
    epochs: options.Epochs = 20,
    preference: options.Preference = None,
    bound: options.Bound = None,
    early_stopping: options.EarlyStopping = None,
    patience: options.Patience = 5,
    k: options.K = 10,
    seed: options.Seed = 0,
) -> None:
    """Train on queries and save the model. An existing model is replaced only after training has succeeded.

    For example: stimulus-moo rank fit train.txt --model model.json --labels 90,215
    """
    if not model.parent.is_dir():
        raise InvalidOption(f"--model must be in an existing directory, found {str(model)!r}")
    ranker = MultiLabelRanker(
        loss=choice("--loss", loss, tuple(LOSSES)),
        hidden=_numbers("--hidden", hidden, int),
        method=find_method(method).name,
        lr=lr,
        momentum=momentum,
        batch_size=batch_size,
        period=period,
        epochs=epochs,
        preference=_numbers("--preference", preference, float) or None,
        bounds=_bounds(bound or []),
        early_stopping=int(early_stopping) if early_stopping and early_stopping.isdecimal() else early_stopping,
        patience=patience,
        k=k,
        random_state=seed,
        verbose=sys.stderr.isatty(),
    )
    columns = _numbers("--labels", labels, int)
    rule = FeatureLabels(columns, grades) if columns else None
    data = read_files(files, layout, zero_based=zero_based)
    data = with_labels(data, None if rule is None else rule.fit(data.X))
    _fit_or_exit(ranker, data)
    save_ranker(ranker, model, rule)
    print_rows(_summary(ranker, data))
    typer.echo(f"model: {model}")


def _fit_or_exit(ranker: MultiLabelRanker, data: RankingData) -> None:
    try:
        ranker.fit(*data)
    except NonFiniteError as error:
        typer.echo(f"error: {error}; a smaller --lr may help", err=True)
        raise typer.Exit(3) from None


def _summary(ranker: Any, data: RankingData) -> dict[str, str]:
    rows = {
        "method": f"{METHODS[ranker.method].title}, step size {ranker.lr_:.3g}",
        "data": f"{len(set(data.qid.tolist())):,} queries, {len(data.qid):,} documents, {data.X.shape[1]:,} features",
        "consumed": (
            f"{ranker.samples_:,} queries drawn, {ranker.gradients_:,} multi-gradients, {ranker.passes_:,} passes"
        ),
        "training losses": ", ".join(f"{loss:.4f}" for loss in ranker.losses_),
        "stationarity": f"{ranker.stationarity_:.3g}",
    }
    if ranker.best_:
        rows[f"held-out NDCG@{ranker.k}"] = ", ".join(f"{value:.4f}" for value in ranker.best_["ndcg"])
    return rows


def _bounds(pairs: list[str]) -> dict[int, float] | None:
    split = [pair.partition("=") for pair in pairs]
    return {_number("--bound", label, int): _number("--bound", share, float) for label, _, share in split} or None


def _numbers(option: str, text: str | None, kind: Callable[[str], Any]) -> list[Any]:
    return [] if text is None else [_number(option, item, kind) for item in text.split(",")]


def _number(option: str, text: str, kind: Callable[[str], Any]) -> Any:
    try:
        return kind(text)
    except ValueError:
        what = "whole numbers" if kind is int else "numbers"
        raise InvalidOption(f"{option} must be {what}, found {text!r}") from None
