"""Commands of the ranker: train on files, score documents, evaluate. Needs typer and rich.

The functions carry typer's annotations and raise the library's errors; ``stimulus-moo rank`` adds the error handling.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from stimulus_moo import METHODS, InvalidOption, NonFiniteError
from stimulus_moo.methods import find_method
from stimulus_moo.options import choice
from stimulus_moo.ranking.binning import FeatureLabels
from stimulus_moo.ranking.commands.files import Layout, read_files, with_labels
from stimulus_moo.ranking.data import RankingData
from stimulus_moo.ranking.losses import LOSSES
from stimulus_moo.ranking.metrics import counted_queries, mean_average_precision, mrr, ndcg
from stimulus_moo.ranking.ranker import MultiLabelRanker
from stimulus_moo.ranking.saving import SavedRanker, load_ranker, save_ranker
from stimulus_moo.training.files import write_whole


def _complete_method(incomplete: str) -> list[str]:
    return [name for name in ("auto", *METHODS) if name.startswith(incomplete)]


def _complete_loss(incomplete: str) -> list[str]:
    return [name for name in LOSSES if name.startswith(incomplete)]


Files = Annotated[
    list[Path],
    typer.Argument(
        metavar="FILE",
        help="Files in LETOR format (label qid:id index:value ...), or in LightGBM format, each with a FILE.query.",
    ),
]
Model = Annotated[Path, typer.Option(help="Saved model, a JSON file.")]
LayoutOption = Annotated[Layout, typer.Option(help="Format of all files; auto looks for qid in the first line.")]
ZeroBased = Annotated[bool, typer.Option("--zero-based", help="Feature indices start at 0, not at 1.")]
K = Annotated[int, typer.Option(min=1, help="Cutoff of NDCG.")]


def fit(
    files: Files,
    model: Model,
    layout: LayoutOption = Layout.AUTO,
    zero_based: ZeroBased = False,
    labels: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMNS",
            help="Features to use as additional labels instead of inputs: columns counted from 0, separated by commas.",
        ),
    ] = None,
    grades: Annotated[int, typer.Option(min=2, help="Maximum number of grades of such a label.")] = 5,
    method: Annotated[
        str, typer.Option(help="A method by name, or auto; see `stimulus-moo list`.", autocompletion=_complete_method)
    ] = "stimulus-m+",
    loss: Annotated[
        str,
        typer.Option(help="listnet, softmax, ranknet, approx-ndcg or lambdaloss.", autocompletion=_complete_loss),
    ] = "listnet",
    hidden: Annotated[
        str | None,
        typer.Option(help="Widths of the hidden layers, separated by commas.", show_default="a linear scorer"),
    ] = None,
    lr: Annotated[float | None, typer.Option(help="Step size.", show_default="from the data; 0.01 for Adam")] = None,
    momentum: Annotated[float, typer.Option(min=0, max=1, help="Momentum of the heavy-ball methods.")] = 0.5,
    batch_size: Annotated[
        int | None, typer.Option(min=1, help="Queries per step.", show_default="the square root of their number")
    ] = None,
    period: Annotated[
        int | None,
        typer.Option(min=1, help="Steps between two anchors.", show_default="the square root of the number of queries"),
    ] = None,
    epochs: Annotated[int, typer.Option(min=1, help="Passes over the training queries.")] = 20,
    preference: Annotated[
        str | None, typer.Option(help="Importance of each label: one positive number per label, separated by commas.")
    ] = None,
    bound: Annotated[
        list[str] | None,
        typer.Option(
            metavar="LABEL=SHARE",
            help="Maximum loss of NDCG relative to a model of this label alone; may be repeated.",
        ),
    ] = None,
    early_stopping: Annotated[
        str | None,
        typer.Option(
            help="A label (0, 1, ...) or 'hypervolume': keep the model that is best on held-out queries.",
            show_default="train to the end",
        ),
    ] = None,
    patience: Annotated[int, typer.Option(min=1, help="Epochs without improvement before training stops.")] = 5,
    k: K = 10,
    seed: Annotated[int, typer.Option(min=0, help="Seed of all random numbers.")] = 0,
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
    try:
        ranker.fit(*data)
    except NonFiniteError as error:
        typer.echo(f"error: {error}; a smaller --lr may help", err=True)
        raise typer.Exit(3) from None
    save_ranker(ranker, model, rule)
    _print_fit(ranker, data)
    typer.echo(f"model: {model}")


def predict(
    files: Files,
    model: Model,
    layout: LayoutOption = Layout.AUTO,
    zero_based: ZeroBased = False,
    out: Annotated[Path | None, typer.Option(help="File for the scores.", show_default="standard output")] = None,
) -> None:
    """Print one score per document, in the order of the files. Higher scores rank first."""
    saved, data = _open(files, model, layout, zero_based)
    lines = "".join(f"{score!r}\n" for score in saved.ranker.predict(data.X).tolist())
    if out is None:
        typer.echo(lines, nl=False)
    else:
        write_whole(out, lambda file: file.write(lines.encode()))


def evaluate(
    files: Files, model: Model, layout: LayoutOption = Layout.AUTO, zero_based: ZeroBased = False, k: K = 10
) -> None:
    """Print NDCG@k, MAP and MRR of every label, and the number of queries with a relevant document."""
    saved, data = _open(files, model, layout, zero_based)
    scores, wanted = saved.ranker.predict(data.X), saved.ranker.n_labels_
    if data.Y.shape[1] != wanted:
        raise InvalidOption(f"the model has {wanted} labels, but the files have {data.Y.shape[1]}")
    found = [
        ndcg(data.Y, scores, data.qid, k=k),
        mean_average_precision(data.Y, scores, data.qid),
        mrr(data.Y, scores, data.qid),
    ]
    counted = counted_queries(data.Y, data.qid)
    table = Table("Label", f"NDCG@{k}", "MAP", "MRR", "Queries")
    for s, name in enumerate(_label_names(saved)):
        table.add_row(Text(name), *(f"{metric[s]:.4f}" for metric in found), f"{counted[s]:,}")
    _print(table)


#: The commands, in the order of the help.
COMMANDS = (fit, predict, evaluate)


def _open(files: list[Path], model: Path, layout: Layout, zero_based: bool) -> tuple[SavedRanker, RankingData]:
    """Return the model, and the documents of the files with the features it was trained on."""
    saved = load_ranker(model)
    width = saved.ranker.n_features_in_ + (0 if saved.rule is None else len(saved.rule.columns))
    data = read_files(files, layout, n_features=width, zero_based=zero_based)
    return saved, with_labels(data, saved.rule)


def _print_fit(ranker: Any, data: RankingData) -> None:
    rows = {
        "method": f"{METHODS[ranker.method].title}, step size {ranker.lr_:.3g}",
        "data": f"{len(set(data.qid.tolist())):,} queries, {len(data.qid):,} documents, {data.X.shape[1]:,} features",
        "consumed": f"{ranker.samples_:,} queries drawn, {ranker.gradients_:,} per-query multi-gradients",
        "training losses": ", ".join(f"{loss:.4f}" for loss in ranker.losses_),
        "stationarity": f"{ranker.stationarity_:.3g}",
    }
    if ranker.best_:
        rows[f"held-out NDCG@{ranker.k}"] = ", ".join(f"{value:.4f}" for value in ranker.best_["ndcg"])
    table = Table(show_header=False)
    for name, value in rows.items():
        table.add_row(Text(name), Text(value))
    _print(table)


def _print(table: Table) -> None:
    """Print a table; where standard output is not a terminal, wide enough to keep each row on one line."""
    console = Console()
    (console if console.is_terminal else Console(width=160)).print(table)


def _label_names(saved: SavedRanker) -> list[str]:
    own = [] if saved.rule is None else [f"column {column}" for column in saved.rule.columns]
    return ["label", *own]


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
