"""Time and memory for training a ranker, compared with LightGBM's lambdarank on the same documents.

python -m benchmarks.ranking                  # 100,000 queries x 20 documents x 136 features, 5 labels; takes minutes
python -m benchmarks.ranking --queries 2000   # a trial
"""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch

from stimulus_moo.lab.studies.lambdarank import lambdarank
from stimulus_moo.lab.synthetic.conflicting_queries import conflicting_queries
from stimulus_moo.ranking import MultiLabelRanker, RankingData, ndcg

QUERIES, DOCUMENTS, FEATURES, LABELS = 100_000, 20, 136, 5
EPOCHS, TREES = 10, 100
TITLE = f"Training a ranker: {LABELS} labels, {DOCUMENTS} documents a query, {FEATURES} features, against LightGBM"
TEXT = """\
Generated queries with conflicting labels (`lab/synthetic/conflicting_queries.py`), held in memory as float32. Our side
is `MultiLabelRanker` with one linear scorer for all labels, as a user calls it: the time includes scaling, choosing the
step size from the data, ten epochs and, in addition, the anchors. LightGBM uses the parameters of its own lambdarank
example and 100 trees. One model per label, each evaluated on its own label, is what a team without multi-label training
uses; the label sum is the single compromise model. Each side runs once, after both have run on 64 queries, with as many
threads as torch. Memory is the peak resident set of the process during training minus the resident set before, which
includes the data. NDCG@10 is measured on 2,000 further queries.
"""
COLUMNS = [
    "queries",
    "side",
    "seconds",
    "ratio to LightGBM, label sum",
    "peak memory above the data, MB",
    "multi-gradients, thousands",
    "NDCG@10, mean over labels",
    "NDCG@10, worst label",
]
_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def rows(quick: bool = False, queries: int = QUERIES) -> list[list[object]]:
    queries, trees = (min(queries, 100), 5) if quick else (queries, TREES)
    train, test = (
        conflicting_queries(
            count,
            documents=DOCUMENTS,
            features=FEATURES,
            labels=LABELS,
            correlation=-0.1,
            interaction=0.5,
            noise=0.5,
            seed=seed,
        )
        for count, seed in ((queries, 0), (min(queries, 2000), 1))
    )
    peer = f"LightGBM {version('lightgbm')}"
    sides = {
        f"STIMULUS-M+, {EPOCHS} epochs": lambda: _ours("stimulus-m+", train, test),
        f"Adam on the mean loss, {EPOCHS} epochs": lambda: _ours("scalarisation-adam", train, test),
        f"{peer}, {trees} trees, label sum": lambda: _theirs(train, test, [None], trees),
        f"{peer}, {trees} trees, one model per label ({LABELS})": lambda: _theirs(train, test, range(LABELS), trees),
    }
    _ours("stimulus-m+", *(_first(part, 64) for part in (train, test)))  # exclude imports and first calls
    _theirs(*(_first(part, 64) for part in (train, test)), [None], trees)
    found = {name: _measured(side) for name, side in sides.items()}
    reference = next(seconds for name, (seconds, _, _) in found.items() if name.endswith("label sum"))
    return [
        [
            f"{queries:,}",
            name,
            f"{seconds:.1f}",
            f"{seconds / reference:.2f}",
            memory,
            spent,
            f"{fmean(scores):.3f}",
            f"{min(scores):.3f}",
        ]
        for name, (seconds, memory, (spent, scores)) in found.items()
    ]


def _ours(method: str, train: RankingData, test: RankingData) -> Callable[[], tuple[str, list[float]]]:
    ranker = MultiLabelRanker(method=method, epochs=EPOCHS, random_state=0).fit(*train)
    return lambda: (f"{ranker.gradients_ / 1000:,.0f}", ndcg(test.Y, ranker.predict(test.X), test.qid).tolist())


def _theirs(train: RankingData, test: RankingData, labels: Any, trees: int) -> Callable[[], tuple[str, list[float]]]:
    """Train on each label; a model for one label is evaluated on that label, the model for the sum on all."""
    boosters = {label: lambdarank(train, label, trees=trees, seed=0) for label in labels}

    def scores() -> tuple[str, list[float]]:
        found = {label: ndcg(test.Y, booster.predict(test.X), test.qid) for label, booster in boosters.items()}
        return "", found[None].tolist() if None in found else [float(found[label][label]) for label in found]

    return scores


def _measured(side: Callable[[], Callable[[], Any]]) -> tuple[float, str, Any]:
    """Return the seconds and the peak memory of training, and the scores."""
    gc.collect()
    before = _reset_peak()
    start = time.perf_counter()
    finish = side()
    seconds = time.perf_counter() - start
    memory = "" if before is None else f"{(_kilobytes('VmHWM') - before) / 1024:,.0f}"
    return seconds, memory, finish()


def _reset_peak() -> int | None:
    """Reset the peak of the resident set to its current size, and return it; None if the system is not Linux."""
    try:
        _CLEAR.write_text("5")
    except OSError:
        return None
    return _kilobytes("VmRSS")


def _kilobytes(name: str) -> int:
    line = next(line for line in _STATUS.read_text().splitlines() if line.startswith(f"{name}:"))
    return int(line.split()[1])


def _first(data: RankingData, queries: int) -> RankingData:
    few = np.flatnonzero(data.qid < queries)
    return RankingData(data.X[few], data.Y[few], data.qid[few])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--queries", type=int, default=QUERIES)
    given = parser.parse_args()
    print(f"{TITLE}; {torch.get_num_threads()} threads")
    print("| " + " | ".join(COLUMNS) + " |\n" + "|---" * len(COLUMNS) + "|")
    for row in rows(queries=given.queries):
        print("| " + " | ".join(map(str, row)) + " |")


if __name__ == "__main__":
    main()
