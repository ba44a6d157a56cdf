"""One cell of the scoreboard: train one rival on one problem with one seed, then score it on held-out data."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from time import process_time
from typing import Any

import torch

from stimulus_moo import NonFiniteError, fit
from stimulus_moo.data.sources import as_source
from stimulus_moo.lab.board import scalarised
from stimulus_moo.lab.board.problem import TUNING_SEED, BoardProblem, Made
from stimulus_moo.lab.board.problems import find_problem
from stimulus_moo.lab.board.rivals import RIVALS, SINGLE, Rival, Start, single_task
from stimulus_moo.lab.board.scores import mean_losses
from stimulus_moo.lab.runs.directory import processor

_FIRST = 4096  # samples on which the losses at the start are measured
_PERIODS = 20  # of dynamic weight averaging

Found = dict[str, Any]


def run_cell(
    problem: str, rival: str, task: int | None, lr: float | None, seed: int, passes: int, data: str | None = None
) -> Found:
    """Train and score.

    Args:
        problem: a name, see ``find_problem``.
        rival: a name of ``RIVALS``, or ``SINGLE``.
        task: the loss of a single-task model, else None.
        lr: the learning rate; None if the rival needs none.
        seed: of the initialization and the batches.
        passes: the budget.
        data: data folder, or None.

    Returns:
        ``validation`` for a tuning seed, else ``test``: one number per metric, or None if the run failed, and why it
        has ``failed``; ``losses``: test losses, if the problem has a reference point; ``passes`` spent; CPU ``seconds``
        of the training, on one thread; the ``machine``, since seconds of different ones do not compare.
    """
    row = find_problem(problem)
    chosen = RIVALS[rival] if rival != SINGLE else single_task(task or 0)
    made = row.make(seed, data)
    torch.manual_seed(seed)  # dropout
    torch.optim.SGD([torch.zeros(1)], lr=1.0)  # the first optimizer imports torch's compiler; that is not training
    train = _trainer(row, chosen, made, lr, seed, passes)
    start = process_time()
    spent, failed = 0, None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            spent = train()
    except NonFiniteError:
        failed = "diverged"
    except Exception as error:
        if chosen.ours:
            raise
        failed = f"{type(error).__name__}: {error}"  # for example of a solver that a rival uses
    seconds = process_time() - start
    if failed is None and not _finite(made):
        failed = "diverged"
    whole, tuning = failed is None, seed >= TUNING_SEED
    tested = bool(row.reference) and not tuning
    return {
        "failed": failed,
        "validation": made.score(made.model, "validation") if whole and tuning else None,
        "test": made.score(made.model, "test") if whole and not tuning else None,
        "losses": mean_losses(made.model, made.losses, made.parts["test"]) if whole and tested else None,
        "passes": spent,
        "seconds": seconds,
        "machine": processor(),
    }


def _finite(made: Made) -> bool:
    return all(bool(torch.isfinite(parameter).all()) for parameter in made.model.parameters())


def _trainer(
    row: BoardProblem, rival: Rival, made: Made, lr: float | None, seed: int, passes: int
) -> Callable[[], int]:
    """Return a function that trains and returns the passes spent; what is prepared here is not charged."""
    if rival.rule is not None:
        assert lr is not None
        period = max(1, math.ceil(min(passes / _PERIODS, len(as_source(made.data))) / row.batch))
        rule = rival.rule(Start(len(row.tasks), period, lambda: _first_losses(made)))
        return partial(scalarised.train, made, rule, lr=lr, batch=row.batch, passes=passes, seed=seed)
    assert rival.options is not None
    options: Mapping[str, Any] = rival.options(len(row.tasks))
    if lr is not None:
        options = {**options, "lr": lr, "callbacks": [_fall(lr, passes)]}
    train = partial(
        fit,
        made.model,
        made.losses,
        made.data,
        batch_size=row.batch,
        passes=passes,
        seed=seed,
        counts=made.counts,
        shared=made.shared,
        evaluation=[as_source(made.data).span(0, 1)],  # scored elsewhere
        progress=False,
        **options,
    )
    return lambda: train().passes


def _fall(lr: float, passes: int) -> Any:
    """Return a callback: the learning rate falls linearly to zero over the last half of the passes."""

    def fall(progress: Any) -> None:
        done = min(progress.record["passes"] / passes, 1.0)
        for group in progress.optimizer.param_groups:
            group["lr"] = lr * min(1.0, 2.0 * (1.0 - done))

    return fall


def _first_losses(made: Made) -> list[float]:
    source = as_source(made.data)
    with torch.no_grad():
        first = source.span(0, min(_FIRST, len(source)))
        found: list[float] = scalarised.stacked(made.losses(made.model, first)).tolist()
    return found
