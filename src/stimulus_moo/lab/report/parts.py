"""Pieces of the report as HTML: tables, legends, figures with their switches, badges; all text is escaped here."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from stimulus_moo.lab.report.curves import AXES
from stimulus_moo.lab.report.groups import Entry, Group
from stimulus_moo.lab.report.palette import Style
from stimulus_moo.lab.report.tables import Cell, Table

_DASHES = {
    "solid": "",
    "dash": "7 3",
    "dot": "2 2.5",
    "dashdot": "7 3 2 3",
    "longdash": "11 3",
    "longdashdot": "11 3 2 3",
}
_TONES = {
    "ahead": "good",
    "holds": "good",
    "level": "fair",
    "mixed": "fair",
    "holds with another step size": "fair",
    "behind": "poor",
    "does not hold": "poor",
}


def table_html(table: Table, entries: Sequence[Entry] = ()) -> str:
    """Return a table in a box that scrolls; rows of entries show the line that stands for them."""
    swatches = [swatch(entry.style) for entry in entries] if len(entries) == len(table.rows) else [""] * len(table.rows)
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in table.columns)
    body = "".join(
        f'<tr><th scope="row">{mark}{_inside(row[0])}</th>{"".join(map(_data, row[1:]))}</tr>'
        for mark, row in zip(swatches, table.rows, strict=True)
    )
    note = f'<p class="note">{escape(table.note)}</p>' if table.note else ""
    title = escape(table.title)
    size = (" long" if len(table.rows) > 20 else "") + (" wide" if len(table.columns) > 9 else "")
    return (
        f'<div class="block"><h3>{title}</h3><div class="scroll{size}" role="region" tabindex="0" '
        f'aria-label="{title}">'
        f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>{note}</div>"
    )


def study_table(table: Mapping[str, Any]) -> Table:
    """Return a study's table in the same form as the others."""
    rows = tuple(tuple(Cell(_value(value)) for value in row) for row in table.get("rows") or () if row)
    return Table(str(table.get("title", "")), tuple(str(name) for name in table.get("columns") or ()), rows)


def swatch(style: Style) -> str:
    """Return a short piece of a method's line."""
    dash = f' stroke-dasharray="{_DASHES[style.dash]}"' if _DASHES[style.dash] else ""
    colours = f"--light:{style.light};--dark:{style.dark}"
    line = f'<line x1="1" y1="6" x2="27" y2="6" stroke-width="{style.width}"{dash}/>'
    return f'<svg class="swatch" style="{colours}" viewBox="0 0 28 12" aria-hidden="true">{line}</svg>'


def legend_html(group: Group) -> str:
    """Return the legend of all figures of an experiment: a button per entry, which hides and shows it."""
    chips = "".join(
        f'<button type="button" class="chip{" family" if entry.family else ""}" data-entry="{i}" aria-pressed="true">'
        f"{swatch(entry.style)}{escape(entry.label)}</button>"
        for i, entry in enumerate(group.entries)
    )
    return (
        f'<div class="legend" role="group" aria-label="Methods: press to hide or show, double-click for one alone">'
        f'{chips}<button type="button" class="chip all">Show all</button></div>'
    )


def figure_html(
    kind: str,
    title: str,
    caption: str,
    *,
    panels: Sequence[tuple[int, str]] = (),
    columns: Sequence[tuple[int, str]] = (),
    axis: str | None = None,
    scale: str | None = None,
) -> str:
    """Return a figure for the report's script to fill.

    Args:
        kind: what is drawn.
        title, caption: above it.
        panels: one chart for each of these columns, with its name.
        columns: or one chart, and a list to choose the column from.
        axis: the first x axis, if it can be switched.
        scale: the first y scale, if it can be switched.
    """
    switches = []
    if columns:
        options = "".join(f'<option value="{at}">{escape(name)}</option>' for at, name in columns)
        switches.append(f'<label class="pick">Show <select data-set="column">{options}</select></label>')
    if axis:
        short = {"iterations": "Iterations", "samples": "Samples", "gradients": "Gradients"}
        switches.append(_switch("axis", "x axis", [(name, short[name]) for name in AXES], axis))
    if scale:
        switches.append(_switch("scale", "y axis", [("linear", "Linear"), ("log", "Log")], scale))
    shown = panels or columns[:1] or [(0, "")]
    charts = "".join(
        f'<div class="panel">{f"<h5>{escape(name)}</h5>" if panels and name else ""}<div class="chart" '
        f'data-column="{at}" role="img" aria-label="{escape(f"{title} {name}".strip())}"></div></div>'
        for at, name in shown
    )
    controls = f'<div class="controls">{"".join(switches)}</div>' if switches else ""
    state = "".join(f' data-{key}="{value}"' for key, value in (("axis", axis), ("scale", scale)) if value)
    return (
        f'<figure data-kind="{kind}"{state}><figcaption><h3>{escape(title)}</h3><p class="note">{escape(caption)}</p>'
        f'</figcaption>{controls}<div class="panels n{min(len(shown), 2)}">{charts}</div></figure>'
    )


def badge(label: str, text: str = "") -> str:
    """Return a verdict in a coloured box, which also says it in words."""
    return f'<span class="badge {_TONES.get(label, "plain")}">{escape(text or label)}</span>'


def bullets(sentences: Iterable[str], kind: str = "") -> str:
    """Return a list, or nothing."""
    items = "".join(f"<li>{escape(str(sentence))}</li>" for sentence in sentences)
    return f'<ul class="{kind}">{items}</ul>' if items else ""


def facts(pairs: Iterable[tuple[str, str]]) -> str:
    """Return names and values."""
    rows = "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in pairs if value)
    return f'<dl class="facts">{rows}</dl>'


def _switch(key: str, label: str, values: Sequence[tuple[str, str]], first: str) -> str:
    buttons = "".join(
        f'<button type="button" data-value="{value}" aria-pressed="{str(value == first).lower()}">{text}</button>'
        for value, text in values
    )
    return f'<div class="switch" role="group" aria-label="{label}" data-set="{key}">{buttons}</div>'


def _inside(cell: Cell) -> str:
    text = f"<strong>{escape(cell.text)}</strong>" if cell.best else escape(cell.text)
    return f'<span title="{escape(cell.note)}">{text}</span>' if cell.note else text


def _data(cell: Cell) -> str:
    return f'<td class="best">{_inside(cell)}</td>' if cell.best else f"<td>{_inside(cell)}</td>"


def _value(value: Any) -> str:
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return "—"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"
