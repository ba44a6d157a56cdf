"""What a problem of the scoreboard is: a row of plain data, and what one seed makes of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

#: Seeds from here on are for choosing learning rates: such runs are scored on validation data, all others on test data.
TUNING_SEED = 100


@dataclass(frozen=True)
class Metric:
    """A test metric of one task.

    Attributes:
        name: what is measured, and of which task if several have the same.
        task: the loss whose single-task model is the baseline.
        higher: whether larger is better.
        relative: whether a difference is divided by the baseline. Metrics whose best value is 0 are not; their
            differences are in percentage points.
    """

    name: str
    task: int
    higher: bool = True
    relative: bool = True


@dataclass(frozen=True)
class Made:
    """A problem with its data and a model initialized from a seed.

    Attributes:
        model: the model.
        losses: ``losses(model, batch)`` returns S mean losses.
        data: training data, tensors in memory.
        score: ``score(model, split)`` returns one number per metric, for the split "validation" or "test".
        counts: as for ``fit``.
        shared: parameters whose gradients determine weights; None for all.
        parts: the tensors of "validation" and "test", if losses on them are of interest.
    """

    model: nn.Module
    losses: Callable[[Any, Any], Any]
    data: Any
    score: Callable[[nn.Module, str], list[float]]
    counts: Callable[[Any], Any] | None = None
    shared: list[nn.Parameter] | None = None
    parts: Mapping[str, tuple[Tensor, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class BoardProblem:
    """A row of the table of problems.

    Attributes:
        name: name on the command line.
        title: title on the page.
        make: function from a seed and the data folder or None to the problem. The seed determines the initialization,
            and the fold if there are folds.
        metrics: test metrics, in the order of ``Made.score``.
        tasks: names of the S losses.
        samples: number of training samples.
        batch: samples per step.
        passes: budget, in per-sample derivatives of one scalar.
        quick: budget for ``--quick``.
        seeds: number of seeds.
        seconds: rough CPU seconds of Adam on the mean, for the time left.
        setting: data, encoding and model, one sentence for the page.
        reference: reference point of the hypervolume of the test losses; empty if it is not shown.
        single: budget of every single-task model; 0 for ``passes``.
        folds: number of folds; with folds, seed k is fold k + 1, and learning rates are chosen for each.
    """

    name: str
    title: str
    make: Callable[[int, Any], Made]
    metrics: tuple[Metric, ...]
    tasks: tuple[str, ...]
    samples: int
    batch: int
    passes: int
    quick: int
    seconds: float
    setting: str
    seeds: int = 5
    reference: tuple[float, ...] = ()
    single: int = 0
    folds: int = 0
