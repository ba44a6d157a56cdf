"""Runs with learning rates that are much too large, with and without the safeguard, and with one too small."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks import problems
from benchmarks.cells import Found, fill
from benchmarks.problems import CASES
from stimulus_moo import NonFiniteError
from stimulus_moo.lab.runs.core_checksum import core_checksum

_LR, _TARGET, _BUDGET, _SEEDS, _OTHER_SEEDS = 0.3, 1.0, 30_000, 20, 5
_FOLDER = Path("runs/benchmarks/forced")

#: for auto: the paper's rate, and 10 times and a tenth of the rate that ``lr="auto"`` finds here, which is 0.01
_AUTO_RATES = (_LR, 0.1, 0.001)

TITLE = "MultiMNIST with forced learning rates, with and without the safeguard"
TEXT = f"""\
`fit` on MultiMNIST (n = 1,024, LeNet, batch and period 32), momentum 0.5, until {_BUDGET:,} gradient evaluations. The
learning rate {_LR} is the paper's. With `auto`, which uses Adam, 0.1 and 0.001 are ten times and a tenth of the rate
that `lr="auto"` finds. A run has trained if both training losses, over all images, are below {_TARGET}; an untrained
model has 2.3. `alone`, `shortened` and `taken back` count the decisions of the safeguard (medians). Target (column
bar): with the safeguard, which is the default, all {_SEEDS} seeds train. "off" means `guard=False`, the published
method unchanged. The safeguard was developed on seeds 0 to 5 and 14, and on seed 16 of STIMULUS-M, the only one of 40
runs in which an earlier version failed (it ended at 1.03).
"""
COLUMNS = [
    *("method", "lr", "guard", "trained", "larger loss, median (lowest-highest)", "steps", "alone", "shortened"),
    *("taken back", "bar", "met"),
]


def train(method: str, lr: float, guard: bool, seed: int, budget: int) -> Found:
    """Train from one seed; the larger loss is infinite if the run fails."""
    case = CASES["multimnist"]
    try:
        result = problems.train(case, case.make(seed), seed=seed, budget=budget, method=method, lr=lr, guard=guard)
    except NonFiniteError:
        return {"loss": 1e9, "steps": 0, "alone": 0, "shortened": 0, "taken_back": 0}
    counts = {name: getattr(result, name) for name in ("steps", "alone", "shortened", "taken_back")}
    return {"loss": max(result.losses), **counts}


def rows(quick: bool = False) -> list[list[object]]:
    budget = 2_000 if quick else _BUDGET
    sides = [("auto", lr, True, _SEEDS) for lr in _AUTO_RATES]
    sides += [(method, _LR, True, _SEEDS) for method in ("stimulus", "stimulus-m")]
    sides += [(method, _LR, False, _OTHER_SEEDS) for method in ("stimulus", "stimulus-m", "smgd")]
    if quick:
        with tempfile.TemporaryDirectory() as folder:
            return [_row(method, lr, guard, 1, budget, Path(folder)) for method, lr, guard, _ in sides[:1]]
    return [_row(*side, budget, _FOLDER) for side in sides]


def _row(method: str, lr: float, guard: bool, seeds: int, budget: int, folder: Path) -> list[object]:
    cells = [{"method": method, "lr": lr, "guard": guard, "seed": seed, "budget": budget} for seed in range(seeds)]
    changes = f", {core_checksum()}" if method == "auto" else ""  # the paper's methods stay as they are
    found = fill(folder, train, cells, f"7, torch {torch.__version__}{changes}")
    losses = [cell["loss"] for cell in found]
    trained = f"{sum(loss < _TARGET for loss in losses)} of {seeds}"
    bar = met = ""
    if guard:
        bar, met = "all", f"{'met' if max(losses) < _TARGET else 'missed'}: {trained}"
    middle = [_median([cell[name] for cell in found]) for name in ("steps", "alone", "shortened", "taken_back")]
    spread = f"{_show(statistics.median(losses))} ({_show(min(losses))}-{_show(max(losses))})"
    return [method, f"{lr:g}", "on" if guard else "off", trained, spread, *middle, bar, met]


def _show(loss: float) -> str:
    return "diverged" if loss >= 1e8 else f"{loss:.2f}"


def _median(values: Sequence[Any]) -> str:
    return f"{statistics.median(values):g}"
