"""The problems of the scoreboard as plain data: loader, model, losses, metrics and budget."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from stimulus_moo.lab.board.images import attributes, pairs
from stimulus_moo.lab.board.letor import FOLDS, mq2008
from stimulus_moo.lab.board.problem import BoardProblem, Metric
from stimulus_moo.lab.board.tabular import census, fairness, multi_target, tox21, tox21_encoding
from stimulus_moo.lab.data.attribute_table import ATTRIBUTES
from stimulus_moo.lab.data.tox21 import ASSAYS

_CENSUS = ("income", "never married", "college")
_FLOWS = ("CHSI2", "NASI2", "EADM7", "SCLM7", "CLKM7", "VALI2", "NAPM7", "DLDI4")
_LABELS = ("grade", "PageRank", "inlinks")
_SHAPES = tuple(attribute.name for attribute in ATTRIBUTES)
_SIDES, _SORTS, _FAIR = ("left", "right"), ("digit", "clothes"), ("cross-entropy", "DEO surrogate")


def _each(kind: str, tasks: tuple[str, ...], *, higher: bool = True) -> tuple[Metric, ...]:
    """Return one metric per task."""
    return tuple(Metric(f"{kind}, {task}", s, higher) for s, task in enumerate(tasks))


_FAIR_METRICS = (
    Metric("accuracy", 0),
    Metric("cross-entropy", 0, higher=False),
    Metric("DEO", 1, higher=False, relative=False),
)
_ONE_HOT = (
    "all 299,285 rows, the official test set, 10% of the training rows for validation; one-hot encoding, standardised "
    "numbers; shared layer of 128, towers of 32"
)

_TABLE = (
    *(
        BoardProblem(
            name=f"census-{len(tasks)}",
            title=f"Census-Income: {', '.join(tasks)}",
            make=census(*tasks),
            metrics=_each("AUC", tasks),
            tasks=tasks,
            samples=179_571,
            batch=256,
            passes=400_000,
            quick=40_000,
            seconds=6.0,
            setting=_ONE_HOT,
        )
        for tasks in (_CENSUS[:2], _CENSUS)
    ),
    BoardProblem(
        name="tox21",
        title="Tox21, 12 assays, 17% of labels missing",
        make=tox21,
        metrics=_each("ROC-AUC", ASSAYS),
        tasks=ASSAYS,
        samples=6_265,
        batch=64,
        passes=150_000,
        quick=15_000,
        seconds=10.0,
        setting=f"80/10/10 random split, 1024 inputs ({tox21_encoding()}), shared layer of 256 with dropout 0.5",
    ),
    *(
        BoardProblem(
            name=name,
            title=title,
            make=pairs(name),
            metrics=_each("accuracy", tasks),
            tasks=tasks,
            samples=60_000,
            batch=64,
            passes=60_000,
            quick=3_000,
            seconds=20.0,
            setting="60,000 pairs of images on 36 x 36 pixels, 10,000 of the test, LeNet",
            reference=(2.0, 2.0),
        )
        for name, title, tasks in (
            ("multimnist", "MultiMNIST", _SIDES),
            ("multifashion", "MultiFashion", _SIDES),
            ("fashion+mnist", "Fashion+MNIST", _SORTS),
        )
    ),
    *(
        BoardProblem(
            name=name,
            title=f"{title}: accuracy against fairness",
            make=fairness(name),
            metrics=_FAIR_METRICS,
            tasks=_FAIR,
            samples=samples,
            batch=batch,
            passes=passes,
            quick=passes // 10,
            seconds=3.0,
            setting="encoded as in COSMOS, 70/10/20 random split, MLP with hidden layers of 60 and 25",
            reference=(2.0, 2.0),
        )
        for name, title, samples, batch, passes in (
            ("adult", "Adult", 34_190, 256, 400_000),
            ("compas", "COMPAS", 4_321, 64, 100_000),
            ("credit", "Credit default", 21_000, 256, 300_000),
        )
    ),
    BoardProblem(
        name="riverflow",
        title="River flow RF1, 8 targets",
        make=multi_target(),
        metrics=_each("RRMSE", _FLOWS, higher=False),
        tasks=_FLOWS,
        samples=6_304,
        batch=64,
        passes=400_000,
        quick=20_000,
        seconds=9.0,
        setting="9,005 rows, 70/10/20 random split, MLP with layers of 128 and 64; the mean RRMSE is aRRMSE",
    ),
    BoardProblem(
        name="mq2008",
        title="MQ2008: grade, PageRank, inlinks",
        make=mq2008,
        metrics=_each("NDCG@10", _LABELS),
        tasks=_LABELS,
        samples=471,
        batch=32,
        passes=40_000,
        quick=4_000,
        seconds=2.4,
        setting="the official 5 folds in place of seeds, 44 features, one scorer, hidden layer of 32, ListNet losses",
        folds=FOLDS,
    ),
    BoardProblem(
        name="attributes",
        title="40 synthetic attributes",
        make=attributes,
        metrics=_each("balanced accuracy", _SHAPES),
        tasks=_SHAPES,
        samples=4_096,
        batch=64,
        passes=120_000,
        quick=10_000,
        seconds=20.0,
        setting="4,096 images of 32 x 32, three convolutions, a layer of 128; 30,000 passes per single-task model",
        seeds=3,
        single=30_000,
    ),
)

#: By name.
PROBLEMS: dict[str, BoardProblem] = {problem.name: problem for problem in _TABLE}


def find_problem(name: str) -> BoardProblem:
    """Return a problem by name; ``FILE.arff:S`` is multi-target regression of the last S columns of an ARFF file.

    Raises:
        InvalidOption: there is no such problem; the message suggests the closest.
    """
    from stimulus_moo.lab.cli.names import find  # imports the command line

    path, _, targets = name.rpartition(":")
    if not path.endswith(".arff") or not targets.isdigit() or int(targets) < 2:
        return PROBLEMS[find(name, [*PROBLEMS, "FILE.arff:TARGETS"], "problem")]
    row, tasks = PROBLEMS["riverflow"], tuple(f"target {s}" for s in range(int(targets)))
    return replace(
        row,
        name=name,
        title=f"{Path(path).stem}, {targets} targets",
        make=multi_target(path, int(targets)),
        metrics=_each("RRMSE", tasks, higher=False),
        tasks=tasks,
        setting="70/10/20 random split, MLP with layers of 128 and 64; the mean RRMSE is aRRMSE",
    )
