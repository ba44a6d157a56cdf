"""The figures of the scoreboard, from its runs: Delta m, worst task, ranks, hypervolume, seconds, paired tests."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any

from stimulus_moo import hypervolume, mean_rank, paired_test, worst_task
from stimulus_moo.lab.board.board import PASSES, SECONDS, Table, score
from stimulus_moo.lab.board.problem import BoardProblem
from stimulus_moo.lab.board.published import PUBLISHED
from stimulus_moo.lab.board.rivals import AUTO, MEAN
from stimulus_moo.lab.board.store import Found

Row = dict[str, Any]


def problem_summary(table: Table) -> Row:
    """Return everything the pages show about one problem."""
    row = table.problem
    kinds = [PASSES, *([SECONDS] if all(runs.seconds for runs in table.rivals.values()) else [])]
    return {
        "name": row.name,
        "title": row.title,
        "setting": row.setting,
        "tasks": len(row.tasks),
        "metrics": [metric.name for metric in row.metrics],
        "higher": [metric.higher for metric in row.metrics],
        "seeds": len(table.baseline),
        "batch": row.batch,
        "machines": _machines(table),
        "limits": {PASSES: _budget(table), SECONDS: table.seconds},
        "baseline": [_mean(column) for column in zip(*table.baseline, strict=True)],
        "baseline_seconds": table.baseline_seconds,
        "published": [vars(one) for one in PUBLISHED.get(row.name, ())],
        "tables": {kind: _rows(table, kind) for kind in kinds},
    }


def _budget(table: Table) -> int:
    return int(statistics.median(found["passes"] for found in table.rivals[MEAN].passes))


def _machines(table: Table) -> list[str]:
    return sorted({found["machine"] for runs in table.rivals.values() for found in (*runs.passes, *runs.seconds)})


def _rows(table: Table, kind: str) -> list[Row]:
    row = table.problem
    scores = {name: _scores(table, getattr(runs, kind)) for name, runs in table.rivals.items()}
    found = [_row(table, kind, name, scores[name], scores[AUTO]) for name in table.rivals]
    means = [[math.nan if value is None else value for value in one["metrics"]] for one in found]
    for one, rank in zip(found, mean_rank(means, higher=[metric.higher for metric in row.metrics]), strict=True):
        one["rank"] = rank
    return found


def _row(table: Table, kind: str, name: str, scores: Sequence[float], auto: Sequence[float]) -> Row:
    """Return the figures of one rival: means over the seeds, and the spread of Delta m."""
    row, runs = table.problem, table.rivals[name]
    cells: list[Found] = getattr(runs, kind)
    limit = _budget(table)
    rates = sorted({lr for lr in runs.rates if lr is not None})
    finite = all(math.isfinite(one) for one in (*scores, *auto))
    return {
        "rival": name,
        "lr": ", ".join(f"{lr:g}" for lr in rates),
        "metrics": [_mean(column) for column in zip(*(_tests(row, cell) for cell in cells), strict=True)],
        "delta_m": _mean(scores),
        "spread": statistics.stdev(scores) if len(scores) > 1 and finite else None,
        "worst": _mean(_worst(table, cells)),
        "p": paired_test(scores, auto) if name != AUTO and finite and len(scores) > 1 else None,
        "hypervolume": _mean([_volume(row, cell) for cell in cells]) if row.reference else None,
        "spent": statistics.fmean(cell["passes"] for cell in cells) / limit,
        "seconds": statistics.fmean(cell["seconds"] for cell in cells),
    }


def _tests(row: BoardProblem, cell: Found) -> Sequence[float | None]:
    return cell["test"] or [None] * len(row.metrics)


def _scores(table: Table, cells: Sequence[Found]) -> list[float]:
    pairs = zip(cells, table.baseline, strict=True)
    return [score(table.problem.metrics, cell["test"], baseline) for cell, baseline in pairs]


def _worst(table: Table, cells: Sequence[Found]) -> list[float | None]:
    metrics = table.problem.metrics
    options: Any = {"higher": [m.higher for m in metrics], "scale": [None if m.relative else 1.0 for m in metrics]}
    found: list[float | None] = []
    for cell, baseline in zip(cells, table.baseline, strict=True):
        known = [value for value in baseline if value is not None]
        whole = cell["test"] is not None and len(known) == len(baseline)
        found.append(worst_task(cell["test"], known, **options) if whole else None)
    return found


def _volume(row: BoardProblem, cell: Found) -> float | None:
    return None if cell["losses"] is None else hypervolume([cell["losses"]], row.reference)


def _mean(values: Sequence[float | None]) -> float | None:
    """Return the mean, or None if a value is missing or not finite."""
    whole = [value for value in values if value is not None and math.isfinite(value)]
    return statistics.fmean(whole) if len(whole) == len(values) else None


def overall(problems: Sequence[Row], kind: str) -> list[Row]:
    """Return the rivals over all problems, best mean rank first.

    Ranks are those of Delta m on each problem; a rival that failed or was left out is last. ``rank`` is their mean.
    ``p`` is the paired test of Delta m against auto, one pair per problem.
    """
    chosen = [problem["tables"][kind] for problem in problems if kind in problem["tables"]]
    if not chosen:
        return []
    names = list(dict.fromkeys(row["rival"] for rows in chosen for row in rows))
    columns = [{row["rival"]: row["delta_m"] for row in rows} for rows in chosen]
    table = [[math.nan if (value := column.get(name)) is None else value for column in columns] for name in names]
    own = table[names.index(AUTO)]
    each = [mean_rank([[score] for score in scores], higher=[False]) for scores in zip(*table, strict=True)]
    found: list[Row] = []
    for name, ranks, scores in zip(names, zip(*each, strict=True), table, strict=True):
        finite = all(map(math.isfinite, (*scores, *own)))
        found.append(
            {
                "rival": name,
                "rank": statistics.fmean(ranks),
                "ranks": list(ranks),
                "delta_m": _mean(scores),
                "better": sum(a < b for a, b in zip(scores, own, strict=True)),
                "p": paired_test(scores, own) if name != AUTO and finite and len(scores) > 1 else None,
                "problems": len(chosen),
            }
        )
    return sorted(found, key=lambda row: float(row["rank"]))
