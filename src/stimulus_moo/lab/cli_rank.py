"""``stimulus-moo rank``: train a multi-label ranker on files, score documents with it, and measure it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from stimulus_moo import METHODS, InvalidOption, NonFiniteError
from stimulus_moo.lab.cli_arguments import complete_method
from stimulus_moo.lab.cli_guard import guarded, stderr, stdout
from stimulus_moo.lab.cli_options import find, find_method
from stimulus_moo.lab.rank_files import Layout, read_files, with_labels
from stimulus_moo.lab.storage import write_text

if TYPE_CHECKING:
    from stimulus_moo.ranking import RankingData, SavedRanker

app = typer.Typer(no_args_is_help=True, help="Rank documents by several labels at once: fit, predict, evaluate.")


def _complete_loss(incomplete: str) -> list[str]:
    from stimulus_moo.ranking import LOSSES

    return [name for name in LOSSES if name.startswith(incomplete)]


Files = Annotated[
    list[Path],
    typer.Argument(
        metavar="FILE",
        help="Files in LETOR's layout (label qid:id index:value ...), or in LightGBM's with FILE.query beside each.",
    ),
]
Model = Annotated[Path, typer.Option(help="The saved model, a JSON file.")]
LayoutOption = Annotated[Layout, typer.Option(help="Of all files; auto looks for qid in the first line.")]
ZeroBased = Annotated[bool, typer.Option("--zero-based", help="Feature indices start at 0, not at 1.")]
K = Annotated[int, typer.Option(min=1, help="The cut of NDCG.")]


@app.command()
@guarded
def fit(
    files: Files,
    model: Model,
    layout: LayoutOption = Layout.AUTO,
    zero_based: ZeroBased = False,
    labels: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMNS",
            help="Features that become further labels and leave the inputs: columns counted from 0, with commas.",
        ),
    ] = None,
    grades: Annotated[int, typer.Option(min=2, help="How many grades such a label has at most.")] = 5,
    method: Annotated[
        str, typer.Option(help="A method by name, or auto; see `stimulus-moo list`.", autocompletion=complete_method)
    ] = "stimulus-m+",
    loss: Annotated[
        str,
        typer.Option(help="listnet, softmax, ranknet, approx-ndcg or lambdaloss.", autocompletion=_complete_loss),
    ] = "listnet",
    hidden: Annotated[
        str | None, typer.Option(help="Widths of hidden layers, with commas.", show_default="a linear scorer")
    ] = None,
    lr: Annotated[float | None, typer.Option(help="Step size.", show_default="from the data; 0.01 for Adam")] = None,
    momentum: Annotated[float, typer.Option(min=0, max=1, help="Of the heavy-ball methods.")] = 0.5,
    batch_size: Annotated[
        int | None, typer.Option(min=1, help="Queries per step.", show_default="the root of their number")
    ] = None,
    period: Annotated[
        int | None,
        typer.Option(min=1, help="Steps from anchor to anchor.", show_default="the root of the number of queries"),
    ] = None,
    epochs: Annotated[int, typer.Option(min=1, help="Passes over the training queries.")] = 20,
    preference: Annotated[
        str | None, typer.Option(help="One positive number per label, with commas: how much each counts.")
    ] = None,
    bound: Annotated[
        list[str] | None,
        typer.Option(
            metavar="LABEL=SHARE",
            help="The label may lose at most this share of its single-label model's NDCG; may be repeated.",
        ),
    ] = None,
    early_stopping: Annotated[
        str | None,
        typer.Option(
            help="A label (0, 1, ...) or 'hypervolume': held-out queries decide which model is kept.",
            show_default="train to the end",
        ),
    ] = None,
    patience: Annotated[int, typer.Option(min=1, help="Epochs without a better model until it stops.")] = 5,
    k: K = 10,
    seed: Annotated[int, typer.Option(min=0, help="Of every draw.")] = 0,
) -> None:
    """Train on queries and save the model; a model that is there already is replaced once the new one is whole.

    For example: stimulus-moo rank fit train.txt --model model.json --labels 90,215
    """
    from stimulus_moo.ranking import LOSSES, FeatureLabels, MultiLabelRanker, save_ranker

    if not model.parent.is_dir():
        raise InvalidOption(f"--model must lie in a directory that exists, found {str(model)!r}")
    ranker = MultiLabelRanker(
        loss=find(loss, LOSSES, "loss"),
        hidden=_numbers("--hidden", hidden, int),
        method=find_method(method),
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
        stderr().print(f"error: {error}; a smaller --lr may help", markup=False, highlight=False, soft_wrap=True)
        raise typer.Exit(3) from None
    save_ranker(ranker, model, rule)
    _print_fit(ranker, data)
    typer.echo(f"model: {model}")


@app.command()
@guarded
def predict(
    files: Files,
    model: Model,
    layout: LayoutOption = Layout.AUTO,
    zero_based: ZeroBased = False,
    out: Annotated[Path | None, typer.Option(help="Write the scores here.", show_default="standard output")] = None,
) -> None:
    """Print one score per document, in the order of the files: higher is ranked first."""
    saved, data = _open(files, model, layout, zero_based)
    lines = "".join(f"{score!r}\n" for score in saved.ranker.predict(data.X).tolist())
    if out is None:
        typer.echo(lines, nl=False)
    else:
        write_text(out, lines)


@app.command()
@guarded
def evaluate(
    files: Files, model: Model, layout: LayoutOption = Layout.AUTO, zero_based: ZeroBased = False, k: K = 10
) -> None:
    """Print NDCG@k, MAP and MRR of every label, and over how many queries: those with a relevant document."""
    from stimulus_moo.ranking import counted_queries, mean_average_precision, mrr, ndcg

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
    stdout().print(table)


def _open(files: list[Path], model: Path, layout: Layout, zero_based: bool) -> tuple[SavedRanker, RankingData]:
    """Return the model, and the files' documents as it takes them."""
    from stimulus_moo.ranking import load_ranker

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
    stdout().print(table)


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
        raise InvalidOption(f"{option} must hold {what}, found {text!r}") from None
