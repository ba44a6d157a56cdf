"""Arguments of the ranker's commands, with typer's annotations."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from stimulus_moo import METHODS
from stimulus_moo.ranking.commands.files import Layout
from stimulus_moo.ranking.losses import LOSSES


def _complete_method(incomplete: str) -> list[str]:
    return [name for name in METHODS if name.startswith(incomplete)]


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

Labels = Annotated[
    str | None,
    typer.Option(
        metavar="COLUMNS",
        help="Features to use as additional labels instead of inputs: columns counted from 0, separated by commas.",
    ),
]
Grades = Annotated[int, typer.Option(min=2, help="Maximum number of grades of such a label.")]
Method = Annotated[
    str, typer.Option(help="A method by name, or auto; see `stimulus-moo list`.", autocompletion=_complete_method)
]
Loss = Annotated[
    str, typer.Option(help="listnet, softmax, ranknet, approx-ndcg or lambdaloss.", autocompletion=_complete_loss)
]
Hidden = Annotated[
    str | None,
    typer.Option(help="Widths of the hidden layers, separated by commas.", show_default="a linear scorer"),
]
LearningRate = Annotated[
    float | None, typer.Option("--lr", help="Step size.", show_default="from the data; 0.01 for Adam")
]
Momentum = Annotated[float, typer.Option(min=0, max=1, help="Momentum of the heavy-ball methods.")]
BatchSize = Annotated[
    int | None, typer.Option(min=1, help="Queries per step.", show_default="the square root of their number")
]
Period = Annotated[
    int | None,
    typer.Option(min=1, help="Steps between two anchors.", show_default="the square root of the number of queries"),
]
Epochs = Annotated[int, typer.Option(min=1, help="Passes over the training queries.")]
Preference = Annotated[
    str | None,
    typer.Option(help="Importance of each label: one positive number per label, separated by commas."),
]
Bound = Annotated[
    list[str] | None,
    typer.Option(
        metavar="LABEL=SHARE",
        help="Maximum loss of NDCG relative to a model of this label alone; may be repeated.",
    ),
]
EarlyStopping = Annotated[
    str | None,
    typer.Option(
        help="A label (0, 1, ...) or 'hypervolume': keep the model that is best on held-out queries.",
        show_default="train to the end",
    ),
]
Patience = Annotated[int, typer.Option(min=1, help="Epochs without improvement before training stops.")]
Seed = Annotated[int, typer.Option(min=0, help="Seed of all random numbers.")]
Scores = Annotated[Path | None, typer.Option(help="File for the scores.", show_default="standard output")]
