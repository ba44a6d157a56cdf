"""Data of the interactive charts as JSON: curves, bands, weights and normalised losses."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from stimulus_moo.lab.report.curves import (
    AXES,
    MOST_POINTS,
    Array,
    Curve,
    loss_curve,
    smooth,
    smoothing_window,
    stationarity_curve,
    thin,
    weight_curve,
    wide_range,
)
from stimulus_moo.lab.report.groups import Entry, Group
from stimulus_moo.lab.report.palette import Style, style_named
from stimulus_moo.lab.report.scores import normalised_losses

#: Approximate number of points of one figure, divided among its traces.
POINTS_PER_FIGURE = 60_000
#: Minimum number of points of a trace.
FEWEST_POINTS = 150


def experiment_data(group: Group) -> dict[str, Any]:
    """Return the data of all charts of an experiment."""
    limit = trace_points(group)
    normalised = normalised_losses(group)
    lasts = [(curve, -2) for entry in group.entries if (curve := loss_curve(entry, "iterations")) is not None]
    return {
        "title": group.title,
        "tasks": list(group.tasks),
        "columns": [*group.tasks, "Mean over tasks", "Worst task"],
        "log": wide_range(lasts),
        "entries": [
            {
                "label": entry.label,
                **_style(entry.style),
                "loss": _over_axes([loss_curve(entry, axis) for axis in AXES], limit),
                "stationarity": _over_axes([stationarity_curve(entry, axis) for axis in AXES], MOST_POINTS),
                "weights": _weights(entry, limit),
                "normalised": _numbers(normalised[entry.label]) if entry.label in normalised else None,
            }
            for entry in group.entries
        ],
    }


def study_data(study: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the charts of a study; series with the name of a method have its colour."""
    charts = []
    for chart in study.get("charts") or ():
        series = []
        for line in chart.get("series") or ():
            name = str(line.get("name", ""))
            known = style_named(name)
            rows = thin(len(line.get("x") or ()))
            numbers = {k: _numbers([line[k][i] for i in rows]) for k in ("x", "y", "low", "high") if line.get(k)}
            series.append({"name": name, **numbers, "mode": line.get("mode"), **(_style(known) if known else {})})
        charts.append({**{k: chart.get(k) for k in ("title", "x", "y")}, "series": series})
    return charts


def has_data(experiment: Mapping[str, Any], key: str) -> bool:
    """Return whether any entry has data for a chart."""
    return any(entry[key] for entry in experiment["entries"])


def trace_points(group: Group) -> int:
    """Return the maximum number of points of a loss or weight trace."""
    traces = max(len(group.tasks), 1) * max(len(group.entries), 1)
    return min(max(POINTS_PER_FIGURE // traces, FEWEST_POINTS), MOST_POINTS)


def to_script(value: Any) -> str:
    """Return JSON that is safe inside a script element."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"), ensure_ascii=True)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _style(style: Style) -> dict[str, Any]:
    return {"color": [style.light, style.dark], "dash": style.dash, "symbol": style.symbol, "width": style.width}


def _over_axes(curves: Sequence[Curve | None], limit: int) -> dict[str, Any] | None:
    """Return x for every axis, and mean, low and high per column, stored once if all axes have the same values."""
    found: dict[str, Any] = {}
    first: Curve | None = None
    for axis, curve in zip(AXES, curves, strict=True):
        if curve is None:
            continue
        curve = curve.pick(thin(len(curve.x), limit))
        one: dict[str, Any] = {"x": _numbers(curve.x, 12)}
        if first is None or not _same(first, curve):
            one.update(mean=_columns(curve.mean))
            if curve.seeds > 1:
                one.update(low=_columns(curve.low), high=_columns(curve.high))
        first = curve if first is None else first
        found[axis] = one
    return found or None


def _same(first: Curve, other: Curve) -> bool:
    pairs = zip(first[1:4], other[1:4], strict=True)
    return all(a.shape == b.shape and bool((a == b).all()) for a, b in pairs)


def _weights(entry: Entry, limit: int) -> dict[str, Any] | None:
    curve = weight_curve(entry)
    if curve is None:
        return None
    window = smoothing_window(len(curve.x))
    rows = thin(len(curve.x), limit)
    return {
        "x": _numbers(curve.x[rows], 12),
        "raw": _columns(curve.mean[rows], 3),
        "smooth": _columns(smooth(curve.mean, window)[rows], 4),
        "mean": _numbers(curve.mean.mean(axis=0)),
        "window": window,
    }


def _columns(values: Array, digits: int = 5) -> list[list[float | None]]:
    return [_numbers(column, digits) for column in values.T]


def _numbers(values: Any, digits: int = 5) -> list[float | None]:
    return [_number(value, digits) for value in values]


def _number(value: Any, digits: int) -> float | None:
    if not isinstance(value, int | float) or not math.isfinite(value):
        return None
    short = float(f"{value:.{digits}g}")
    return int(short) if short.is_integer() and abs(short) < 1e15 else short
