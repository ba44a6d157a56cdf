"""Interactive charts of an experiment: titles, captions and controls; the page's script draws them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stimulus_moo.lab.report.curves import AXES, smoothing_window, weight_curve
from stimulus_moo.lab.report.data import has_data
from stimulus_moo.lab.report.groups import Group
from stimulus_moo.lab.report.scores import cost_of

#: Maximum number of tasks with one panel each; with more tasks, the reader picks one from a list.
PANELS = 4


@dataclass(frozen=True)
class Chart:
    """One figure of the page.

    Attributes:
        kind: what the script draws.
        title, caption: text above the figure.
        panels: one panel per (column, name).
        columns: instead of panels, the (column, name) pairs to pick from.
        axis, axes: initial x axis, and the (axis, name) pairs to switch between.
        scale: initial y scale, if it can be switched.
    """

    kind: str
    title: str
    caption: str = ""
    panels: Sequence[tuple[int, str]] = ()
    columns: Sequence[tuple[int, str]] = ()
    axis: str | None = None
    axes: Sequence[tuple[str, str]] = ()
    scale: str | None = None


def experiment_charts(group: Group, data: Mapping[str, Any]) -> list[Chart | str]:
    """Return the charts of an experiment, and a sentence in place of each chart without data."""
    several = any(len(entry.runs) > 1 for entry in group.entries)
    band = "Line: mean over seeds; band: lowest to highest seed." if several else "One seed each, so there is no band."
    tasks, cost = list(enumerate(group.tasks)), cost_of(group)
    return [
        _loss_chart(tasks, data, band, cost),
        _stationarity_chart(data, band, cost),
        *(_radar_charts(tasks) if len(tasks) >= 3 and has_data(data, "normalised") else ()),
        *(_weight_charts(group, tasks) if has_data(data, "weights") else ()),
    ]


def _loss_chart(tasks: Sequence[tuple[int, str]], data: Mapping[str, Any], band: str, axis: str) -> Chart | str:
    if not has_data(data, "loss"):
        return "No training loss over the whole training set: there is no loss figure."
    caption, scale = f"Over the whole training set. {band}", "log" if data["log"] else "linear"
    controls: dict[str, Any] = {"axis": axis, "axes": _axes(data, "loss"), "scale": scale}
    if len(tasks) <= PANELS:
        return Chart("loss", "Training loss", caption, panels=tasks, **controls)
    columns = [(len(tasks), "Mean over tasks"), (len(tasks) + 1, "Worst task"), *tasks]
    title = f"Training loss, {len(tasks)} tasks"
    return Chart("loss", title, caption, columns=columns, **controls)


def _stationarity_chart(data: Mapping[str, Any], band: str, axis: str) -> Chart | str:
    if not has_data(data, "stationarity"):
        return "Stationarity was not evaluated: there is no stationarity figure."
    caption = f"The smallest squared norm of a weighted gradient: 0 at a Pareto-stationary point. {band}"
    axes = _axes(data, "stationarity")
    return Chart("stationarity", "Pareto stationarity", caption, axis=axis, axes=axes, scale="log")


def _axes(data: Mapping[str, Any], key: str) -> list[tuple[str, str]]:
    """Return the x axes for which there are curves, with their short names."""
    curves = [entry[key] for entry in data["entries"] if entry[key]]
    return [(axis, axis.capitalize()) for axis in AXES if any(axis in found for found in curves)]


def _radar_charts(tasks: Sequence[tuple[int, str]]) -> list[Chart]:
    caption = "Loss at the end divided by the largest over the methods; closer to the centre is better."
    if len(tasks) <= 12:
        return [Chart("radar", "Normalised losses", caption)]
    return [
        Chart("radar", "Normalised losses", f"{caption} Numbers are the tasks in order."),
        Chart("normalised", "Normalised losses by task", "As above; darker is better."),
    ]


def _weight_charts(group: Group, tasks: Sequence[tuple[int, str]]) -> list[Chart]:
    lengths = [len(curve.x) for entry in group.entries if (curve := weight_curve(entry)) is not None]
    window = smoothing_window(max(lengths))
    caption = f"Mean over seeds, moving average of {window} iterations; faint: not averaged over iterations."
    layout: dict[str, Any] = {"panels": tasks} if len(tasks) <= PANELS else {"columns": tasks}
    charts = [Chart("weights", "Weights λ over time", caption, **layout)]
    if len(tasks) >= 3:
        charts.append(Chart("shares", "Mean weight of each task", "Average of λ over all iterations and seeds."))
    return charts
