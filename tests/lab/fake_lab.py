"""A tiny experiment, a tiny study, and the command line with these alone: ``python -m tests.lab.fake_lab run tiny``."""

import os
import re
import time
from pathlib import Path

import torch
from torch import nn

from stimulus_moo.lab.experiment import Experiment, ExperimentSettings
from stimulus_moo.lab.problem import Problem
from stimulus_moo.lab.study import Study

SLEEP = "FAKE_LAB_SLEEP"


def losses(model, batch):
    time.sleep(float(os.environ.get(SLEEP, "0")))
    inputs, targets = batch
    return (model(inputs) - targets).square().mean(0)


def build(settings, seed, data):
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(settings.n or 64, 4, generator=generator)
    targets = inputs[:, :2] + 0.1 * torch.randn(len(inputs), 2, generator=generator)
    torch.manual_seed(seed)
    return Problem(
        model=nn.Sequential(nn.Dropout(0.2), nn.Linear(4, 2)),  # dropout: a resumed run must have the same random state
        losses=losses,
        data=(inputs, targets),
        tasks=("first", "second"),
        test=lambda model: {"error": [0.25, 0.75]},
        source="made up",
        synthetic=True,
    )


TINY = Experiment(
    name="tiny",
    title="A tiny regression",
    claim="None.",
    settings=ExperimentSettings(
        lr=0.05, momentum=0.5, batch_size=8, period=8, steps=40, evaluate_every=10, lr_of={"moco": 0.01}
    ),
    build=build,
    quick={"steps": 6},
    methods=("mgd", "stimulus-m"),
)


def count(settings, seeds, cell):
    rows = [
        [n, seed, cell({"n": n, "seed": seed}, lambda n=n: n * n)] for n in settings["sizes"] for seed in range(seeds)
    ]
    return {
        "verdict": "holds",
        "findings": [f"{len(rows)} cells"],
        "tables": [{"title": "Squares", "columns": ["n", "seed", "square"], "rows": rows}],
        "charts": [],
    }


SQUARES = Study("squares", "Squares of numbers", "They grow.", {"sizes": [1, 2, 3]}, count, {"sizes": [1]})


def catalogue():
    return {"tiny": TINY}, {"squares": SQUARES}


def metrics(folder: Path) -> str:
    """Return the metrics of a run without the seconds, which differ from run to run."""
    return re.sub(', "seconds": [^,}]+', "", (folder / "metrics.jsonl").read_text())


if __name__ == "__main__":
    from stimulus_moo.__main__ import main
    from stimulus_moo.lab.cli import arguments

    arguments.catalogue = catalogue
    main()
