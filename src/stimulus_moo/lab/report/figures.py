"""Static figures as PNG and PDF: losses, stationarity, weights and radar charts of experiments, charts of studies."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from stimulus_moo import MissingDependency
from stimulus_moo.lab.report.curves import (
    AXES,
    Curve,
    loss_curve,
    smooth,
    smoothing_window,
    stationarity_curve,
    thin,
    weight_curve,
)
from stimulus_moo.lab.report.drawing import (
    SETTINGS,
    about_band,
    finish,
    grid,
    heat,
    legend,
    line,
    lines,
    short,
    styled,
    text,
    used,
)
from stimulus_moo.lab.report.groups import Entry, Group, group_runs
from stimulus_moo.lab.report.palette import style_named
from stimulus_moo.lab.report.scores import cost_of, normalised_losses
from stimulus_moo.training.files import write_whole

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from stimulus_moo.lab.runs import RecordedRun

#: Maximum number of tasks with a row of panels each, and with a panel each. With more tasks, a heat map is drawn.
FEW, SOME = 4, 12


def write_figures(runs: Iterable[RecordedRun], studies: Iterable[Mapping[str, Any]], folder: Path) -> list[Path]:
    """Write every figure as PNG and PDF and return the files, in a fixed order.

    Args:
        runs: runs from ``load_runs``.
        studies: studies from ``load_studies``.
        folder: output folder; created if necessary.

    Raises:
        MissingDependency: matplotlib is not installed.
    """
    try:
        import matplotlib
    except ImportError:
        raise MissingDependency("figures need matplotlib: pip install 'stimulus-moo[lab]'") from None
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    with matplotlib.rc_context(SETTINGS), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing", UserWarning)  # fonts may lack characters of task names
        for name, figure in _figures(group_runs(runs), studies):
            for suffix, metadata in (("png", {"Software": None}), ("pdf", {"CreationDate": None, "Creator": None})):
                path = folder / f"{name}.{suffix}"
                write_whole(path, partial(figure.savefig, format=suffix, dpi=160, metadata=metadata))
                paths.append(path)
                figure.set_layout_engine("none")  # compute the layout once for both files
    return paths


def loss_figure(group: Group) -> Figure | None:
    """Draw the losses over the training set against iterations and every cost that was recorded, one row per task.

    With more than four tasks the rows are the mean over tasks and the worst task.
    """
    names = [*group.tasks, "Mean over tasks", "Worst task"]
    rows = range(len(group.tasks)) if len(group.tasks) <= FEW else (len(names) - 2, len(names) - 1)
    curves = _over_axes(group, loss_curve)
    if not curves:
        return None
    figure, panels = grid(len(rows), len(curves), 4.3, 2.9)
    for (axis, found), column in zip(curves.items(), panels.T, strict=True):
        for panel, row in zip(column, rows, strict=True):
            lines(panel, axis, [(entry, curve, row) for entry, curve in found])
            panel.set(title=text(names[row]) if axis == "iterations" else "", ylabel="")
            if axis == "iterations":
                panel.set_ylabel("Training loss")
            panel.set_xlabel(AXES[axis])
    return finish(figure, f"{_named(group)}: loss over the whole training set ({about_band(group)})", group)


def task_figure(group: Group) -> Figure | None:
    """Draw the loss of each task against the cost of the comparison, for five to twelve tasks."""
    if not FEW < len(group.tasks) <= SOME:
        return None
    cost = cost_of(group)
    curves = [(entry, loss_curve(entry, cost)) for entry in group.entries]
    figure, panels = grid(-(-len(group.tasks) // 4), 4, 3.2, 2.5)
    drawn = False
    for s, panel in enumerate(used(panels, len(group.tasks))):
        drawn |= lines(panel, cost, [(entry, curve, s) for entry, curve in curves if curve is not None])
        panel.set(title=text(group.tasks[s]), xlabel=AXES[cost])
    return finish(figure, f"{_named(group)}: loss per task ({about_band(group)})", group) if drawn else None


def stationarity_figure(group: Group) -> Figure | None:
    """Draw the Pareto stationarity on a log scale against iterations and every cost that was recorded."""
    curves = _over_axes(group, stationarity_curve)
    if not curves:
        return None
    figure, panels = grid(1, len(curves), 4.3, 3.2)
    for (axis, found), panel in zip(curves.items(), panels.ravel(), strict=True):
        lines(panel, axis, [(entry, curve, 0) for entry, curve in found], log=True)
        panel.set(xlabel=AXES[axis], ylabel="Stationarity" if axis == "iterations" else "")
    return finish(figure, f"{_named(group)}: Pareto stationarity ({about_band(group)})", group)


def weight_figure(group: Group) -> Figure | None:
    """Draw lambda against iterations, one panel per task: smoothed, and unsmoothed as a faint line."""
    curves = [(entry, curve) for entry in group.entries if (curve := weight_curve(entry)) is not None]
    if not curves or len(group.tasks) > SOME:
        return None
    columns = min(len(group.tasks), 4)
    figure, panels = grid(-(-len(group.tasks) // columns), columns, 4.3 if columns < 4 else 3.2, 2.7)
    for s, panel in enumerate(used(panels, len(group.tasks))):
        for entry, curve in curves:
            rows, smoothed = thin(len(curve.x)), smooth(curve.mean, smoothing_window(len(curve.x)))
            if not entry.scalarisation:
                panel.plot(curve.x[rows], curve.mean[rows, s], color=entry.style.light, alpha=0.08, linewidth=0.6)
            panel.plot(curve.x[rows], smoothed[rows, s], **line(entry))
        panel.set(title=text(group.tasks[s]), xlabel="Iterations", ylabel="λ" if s % columns == 0 else "")
        panel.set_ylim(-0.02, None)
    return finish(figure, f"{_named(group)}: weights λ, mean over seeds, smoothed; faint: not smoothed", group)


def mean_weight_figure(group: Group) -> Figure | None:
    """Draw the mean weight of each task by method as a heat map, for five or more tasks."""
    if len(group.tasks) <= FEW:
        return None
    rows = {e.label: c.mean.mean(axis=0).tolist() for e in group.entries if (c := weight_curve(e)) is not None}
    return heat(group.tasks, rows, f"{_named(group)}: mean weight λ of each task") if rows else None


def normalised_figure(group: Group) -> Figure | None:
    """Draw the normalised losses as a heat map, if there are too many tasks for a radar chart."""
    rows = normalised_losses(group) if len(group.tasks) > SOME else {}
    return heat(group.tasks, rows, f"{_named(group)}: loss / largest over the methods") if rows else None


def radar_figure(group: Group) -> Figure | None:
    """Draw a radar chart of the final losses divided by the largest over the methods, for three or more tasks."""
    from matplotlib.figure import Figure

    rows = normalised_losses(group) if len(group.tasks) >= 3 else {}
    if not rows:
        return None
    figure = Figure(figsize=(8.6, 6.4), layout="constrained")
    panel: Any = figure.add_subplot(projection="polar")
    angles = np.linspace(0, 2 * np.pi, len(group.tasks), endpoint=False)
    for entry in group.entries:
        if row := rows.get(entry.label):
            panel.plot([*angles, angles[0]], [*row, row[0]], **line(entry))
    named = len(group.tasks) <= SOME
    labels = [text(short(t)) if named else str(s + 1) for s, t in enumerate(group.tasks)]
    panel.set_xticks(angles, labels)
    panel.tick_params(axis="x", pad=9)
    panel.set_rlim(0, 1.02)
    panel.set_rgrids([0.25, 0.5, 0.75, 1.0], color="#6b7480", fontsize=8)
    legend(figure, group.entries, "outside right center", 1)
    note = "" if named else "; numbers are the tasks in order"
    figure.suptitle(text(f"{_named(group)}: loss / largest over the methods{note}"), fontsize=11)
    return figure


def chart_figure(chart: Mapping[str, Any]) -> Figure:
    """Draw a chart of a study."""
    figure, panels = grid(1, 1, 7.2, 4.4)
    panel = panels[0, 0]
    for i, series in enumerate(chart.get("series") or ()):
        x, y = (np.array(series.get(key) or [], dtype=np.float64) for key in "xy")
        name = str(series.get("name", ""))
        known = style_named(name)
        look = styled(known) if known else {"color": f"C{i % 10}"}
        if series.get("mode") == "markers":
            look |= {"linestyle": "none", "marker": "o", "markersize": 4.5}
        panel.plot(x, y, label=text(name), **look)
        if series.get("low") and series.get("high"):
            low, high = (np.array(series[key], dtype=np.float64) for key in ("low", "high"))
            panel.fill_between(x, low, high, color=look["color"], alpha=0.15, linewidth=0)
    for key in "xy":
        about = chart.get(key) or {}
        panel.set(
            **{f"{key}label": text(str(about.get("label", ""))), f"{key}scale": "log" if about.get("log") else "linear"}
        )
    if panel.get_legend_handles_labels()[0]:
        panel.legend(frameon=False, fontsize=8)
    panel.set_title(text(str(chart.get("title", ""))))
    return figure


#: Figures of an experiment, by the suffix of the file name.
FIGURES: Mapping[str, Callable[[Group], Any]] = {
    "loss": loss_figure,
    "tasks": task_figure,
    "stationarity": stationarity_figure,
    "weights": weight_figure,
    "mean-weights": mean_weight_figure,
    "radar": radar_figure,
    "normalised": normalised_figure,
}


def _figures(groups: Iterable[Group], studies: Iterable[Mapping[str, Any]]) -> Iterator[tuple[str, Figure]]:
    for group in groups:
        for ending, draw in FIGURES.items():
            if (figure := draw(group)) is not None:
                yield f"{_file(group.name)}-{ending}", figure
    for study in studies:
        for i, chart in enumerate(study.get("charts") or ()):
            yield f"{_file(str(study.get('name')))}-{i + 1}", chart_figure(chart)


def _over_axes(group: Group, curve_of: Callable[[Entry, str], Curve | None]) -> dict[str, list[tuple[Entry, Curve]]]:
    """Return the curves of every axis for which there are any."""
    found = {
        axis: [(entry, curve) for entry in group.entries if (curve := curve_of(entry, axis)) is not None]
        for axis in AXES
    }
    return {axis: curves for axis, curves in found.items() if curves}


def _named(group: Group) -> str:
    return f"{group.title} [synthetic data]" if group.synthetic else group.title


def _file(name: str) -> str:
    return re.sub(r"[^\w.+-]+", "-", name).strip("-.") or "experiment"
