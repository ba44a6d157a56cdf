"""A board at toy size: two regression problems and three rivals, which train in a blink."""

import torch
from torch import nn

from stimulus_moo.lab.board.problem import BoardProblem, Made, Metric
from stimulus_moo.lab.board.rivals import RIVALS


def make(seed, folder, *, scale=1.0):
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(192, 4, generator=generator)
    targets = torch.stack([inputs.sum(1), inputs[:, 0] - inputs[:, 1]], dim=1)
    splits = {"train": slice(0, 128), "validation": slice(128, 160), "test": slice(160, 192)}
    parts = {name: (inputs[rows], targets[rows]) for name, rows in splits.items()}
    torch.manual_seed(seed)
    model = nn.Linear(4, 2)

    def losses(model, batch):
        return (model(batch[0]) - batch[1]).square().mean(0) * torch.tensor([1.0, scale])

    def score(model, split):
        with torch.no_grad():
            return (1.0 + losses(model, parts[split])).tolist()  # 1 at best

    return Made(model, losses, parts["train"], score, parts=parts)


def problem(name="toy", **changes):
    settings = {
        "name": name,
        "title": f"Toy <{name}>",
        "make": make,
        "metrics": (Metric("error, sum", 0, higher=False), Metric("error, difference", 1, higher=False)),
        "tasks": ("sum", "difference"),
        "samples": 128,
        "batch": 16,
        "passes": 640,
        "quick": 160,
        "seconds": 0.1,
        "setting": "a linear model",
        "seeds": 2,
        "reference": (2.0, 2.0),
    }
    return BoardProblem(**{**settings, **changes})


NAMES = ("adam-mean", "smgd", "auto")


def install(monkeypatch, *rows):
    """Replace the tables of problems and rivals."""
    from stimulus_moo.lab.board import cell, problems, rivals

    monkeypatch.setattr(problems, "PROBLEMS", {row.name: row for row in rows or (problem(),)})
    for module in (rivals, cell):
        monkeypatch.setattr(module, "RIVALS", {name: RIVALS[name] for name in NAMES})
    return problems.PROBLEMS
