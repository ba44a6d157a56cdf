"""Parts of a study's report as JSON values: tables, charts, series with a band over seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from stimulus_moo.lab.study import Study


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> dict[str, Any]:
    """Return a table."""
    return {"title": title, "columns": list(columns), "rows": [list(row) for row in rows]}


def chart(title: str, x: str, y: str, series: Sequence[dict[str, Any]], *, log: str = "") -> dict[str, Any]:
    """Return a chart; ``log`` names the logarithmic axes, "x", "y" or "xy"."""
    return {
        "title": title,
        "x": {"label": x, "log": "x" in log},
        "y": {"label": y, "log": "y" in log},
        "series": list(series),
    }


def curve(name: str, x: Sequence[float], y: Sequence[float]) -> dict[str, Any]:
    """Return a line."""
    return {"name": name, "x": list(x), "y": list(y), "mode": "lines"}


def dots(name: str, x: Sequence[float], y: Sequence[float]) -> dict[str, Any]:
    """Return single points."""
    return {"name": name, "x": list(x), "y": list(y), "mode": "markers"}


def band(name: str, x: Sequence[float], over_seeds: Sequence[Sequence[float]]) -> dict[str, Any]:
    """Return the mean over seeds as a line, with the lowest and highest seed as its band.

    >>> band("MGD", [1, 2], [[1.0, 2.0], [3.0, 6.0]])["y"]
    [2.0, 4.0]
    """
    columns = list(zip(*over_seeds, strict=True))
    return {
        **curve(name, x, [mean(column) for column in columns]),
        "low": [min(column) for column in columns],
        "high": [max(column) for column in columns],
    }


def mean(values: Sequence[float]) -> float:
    """Return the arithmetic mean.

    >>> mean([1.0, 2.0])
    1.5
    """
    return sum(values) / len(values)


def mean_or_none(values: Sequence[float | None]) -> int | None:
    """Return the mean of counters, rounded, or None if one is missing, as passes in cells of older versions.

    >>> mean_or_none([10, 13]), mean_or_none([10, None])
    (12, None)
    """
    known = [value for value in values if value is not None]
    return round(mean(known)) if len(known) == len(values) else None


def page(
    study: Study,
    settings: Mapping[str, Any],
    verdict: str,
    findings: Sequence[str],
    tables: Sequence[dict[str, Any]],
    charts: Sequence[dict[str, Any]],
) -> dict[str, Any]:
    """Return the report of a study."""
    return {
        "name": study.name,
        "title": study.title,
        "claim": study.claim,
        "settings": {name: list(v) if isinstance(v, tuple) else v for name, v in settings.items()},
        "verdict": verdict,
        "findings": list(findings),
        "tables": list(tables),
        "charts": list(charts),
    }
