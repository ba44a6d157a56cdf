"""Drawing helpers of the static figures: lines with bands, heat maps, legends. No global matplotlib state is used."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from stimulus_moo.lab.report.curves import Curve, thin, uneven, wide_range
from stimulus_moo.lab.report.groups import Entry, Group
from stimulus_moo.lab.report.palette import Style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: plotly's dash names as matplotlib line styles.
DASHES: Mapping[str, Any] = {
    "solid": "-",
    "dash": (0, (4, 1.6)),
    "dot": (0, (1, 1.4)),
    "dashdot": (0, (5, 1.5, 1, 1.5)),
    "longdash": (0, (8, 2)),
    "longdashdot": (0, (8, 2, 1, 2)),
}
#: matplotlib settings while a figure is drawn and written.
SETTINGS: Any = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e3e6ea",
    "grid.linewidth": 0.6,
    "axes.edgecolor": "#8a939d",
    "axes.titlesize": 10,
    "pdf.fonttype": 42,
    "figure.dpi": 100,
}


def grid(rows: int, columns: int, width: float, height: float) -> tuple[Figure, Any]:
    """Return a figure and its panels, an array of rows and columns; width and height of one panel in inches."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width * columns, height * rows + 0.9), layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False)


def used(panels: Any, count: int) -> list[Any]:
    """Return the first ``count`` panels and hide the others."""
    for panel in panels.ravel()[count:]:
        panel.set_visible(False)
    return list(panels.ravel()[:count])


def lines(panel: Any, axis: str, curves: Sequence[tuple[Entry, Curve, int]], log: bool | None = None) -> bool:
    """Draw mean and band of one column of each curve; by default, the y axis is logarithmic for a wide range."""
    from matplotlib.ticker import EngFormatter

    for entry, curve, column in curves:
        curve = curve.pick(thin(len(curve.x)))
        point = {"marker": "o", "markersize": 4} if len(curve.x) == 1 else {}
        panel.plot(curve.x, curve.mean[:, column], **line(entry), **point)
        if curve.seeds > 1:
            band = curve.low[:, column], curve.high[:, column]
            panel.fill_between(curve.x, *band, color=entry.style.light, alpha=0.13, linewidth=0)
    columns = [(curve, column) for _, curve, column in curves]
    if wide_range(columns) if log is None else log and any((c.mean[:, at] > 0).any() for c, at in columns):
        panel.set_yscale("log")
    if axis != "iterations" and uneven([curve for _, curve, _ in curves]):
        panel.set_xscale("log")
    panel.xaxis.set_major_formatter(EngFormatter(sep=""))
    return bool(curves)


def line(entry: Entry) -> dict[str, Any]:
    """Return the line properties of an entry."""
    return styled(entry.style)


def styled(style: Style) -> dict[str, Any]:
    """Return a style as matplotlib line properties."""
    width = style.width * 0.62
    return {"color": style.light, "linestyle": DASHES[style.dash], "linewidth": width, "zorder": 2 + width}


def heat(tasks: Sequence[str], rows: Mapping[str, Sequence[float]], title: str) -> Figure:
    """Draw a heat map with one row per method and one column per task."""
    figure, panels = grid(1, 1, max(7.0, 2.5 + 0.27 * len(tasks)), 0.9 + 0.28 * len(rows))
    image = panels[0, 0].imshow(list(rows.values()), aspect="auto", cmap="cividis")
    panels[0, 0].grid(False)
    panels[0, 0].set_yticks(range(len(rows)), [text(label) for label in rows])
    panels[0, 0].set_xticks(range(len(tasks)), [text(short(t)) for t in tasks], rotation=90 if len(tasks) > 8 else 0)
    figure.colorbar(image, ax=panels[0, 0], pad=0.01)
    panels[0, 0].set_title(text(title), loc="left")
    return figure


def finish(figure: Figure, title: str, group: Group) -> Figure:
    """Add the title, and a legend below it as wide as the figure."""
    figure.suptitle(text(title), fontsize=11)
    longest = max(len(entry.label) for entry in group.entries)
    columns = int(figure.get_figwidth() * 11 / (longest + 10))
    legend(figure, group.entries, "outside lower center", max(1, min(columns, len(group.entries))))
    return figure


def about_band(group: Group) -> str:
    """Return the explanation of lines and bands."""
    several = any(len(entry.runs) > 1 for entry in group.entries)
    return "line: mean over seeds, band: lowest to highest seed" if several else "one seed, no band"


def legend(figure: Figure, entries: Sequence[Entry], where: Any, columns: int) -> None:
    """Add one legend for all panels."""
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], label=text(entry.label), **line(entry)) for entry in entries]
    figure.legend(handles=handles, loc=where, ncols=columns, frameon=False, fontsize=8, handlelength=3.2)


def text(words: str) -> str:
    """Escape dollar signs, which matplotlib would read as math."""
    return words.replace("$", r"\$")


def short(name: str, most: int = 22) -> str:
    """Shorten a name so that it fits beside an axis."""
    return name if len(name) <= most else name[: most - 1] + "…"
