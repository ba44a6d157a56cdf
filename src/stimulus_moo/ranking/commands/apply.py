"""``rank predict`` and ``rank evaluate``: apply a saved ranker to files."""

from __future__ import annotations

from pathlib import Path

import typer
from rich.table import Table
from rich.text import Text

from stimulus_moo import InvalidOption
from stimulus_moo.ranking.commands import arguments as options
from stimulus_moo.ranking.commands.files import Layout, read_files, with_labels
from stimulus_moo.ranking.commands.tables import print_table
from stimulus_moo.ranking.data import RankingData
from stimulus_moo.ranking.metrics import counted_queries, mean_average_precision, mrr, ndcg
from stimulus_moo.ranking.saving import SavedRanker, load_ranker
from stimulus_moo.training.files import write_whole


def predict(
    files: options.Files,
    model: options.Model,
    layout: options.LayoutOption = Layout.AUTO,
    zero_based: options.ZeroBased = False,
    out: options.Scores = None,
) -> None:
    """Print one score per document, in the order of the files. Higher scores rank first."""
    saved, data = _open(files, model, layout, zero_based)
    lines = "".join(f"{score!r}\n" for score in saved.ranker.predict(data.X).tolist())
    if out is None:
        typer.echo(lines, nl=False)
    else:
        write_whole(out, lambda file: file.write(lines.encode()))


def evaluate(
    files: options.Files,
    model: options.Model,
    layout: options.LayoutOption = Layout.AUTO,
    zero_based: options.ZeroBased = False,
    k: options.K = 10,
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
    print_table(table)


def _open(files: list[Path], model: Path, layout: Layout, zero_based: bool) -> tuple[SavedRanker, RankingData]:
    """Return the model, and the documents of the files with the features it was trained on."""
    saved = load_ranker(model)
    width = saved.ranker.n_features_in_ + (0 if saved.rule is None else len(saved.rule.columns))
    data = read_files(files, layout, n_features=width, zero_based=zero_based)
    return saved, with_labels(data, saved.rule)


def _label_names(saved: SavedRanker) -> list[str]:
    own = [] if saved.rule is None else [f"column {column}" for column in saved.rule.columns]
    return ["label", *own]
