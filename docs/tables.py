"""Tables of our pages, each made from the results files by a function that ``docs.figures`` calls by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.hands_free import AUTO, MEAN, RELATIVE, UPGRAD
from benchmarks.report import table

_METHODS = (AUTO, MEAN, RELATIVE, UPGRAD)
_HEAD = ["problem, passes", "auto, nothing tuned", "Adam on the mean", "Adam, relative losses", "UPGrad"]

Sections = Mapping[str, Mapping[str, Any]]


def auto_and_adam(sections: Sections) -> str:
    """Return the losses of auto and its rivals at the end, one row per problem."""
    return table(_HEAD, [[problem, *_losses(sides)] for problem, sides in _sides(sections).items()])


def auto_and_adam_in_full(sections: Sections) -> str:
    """Return the same with the ratios at every budget, and the stationarity."""
    head = [*_HEAD, "auto / Adam at 1/4, 1/2, the end", "stationarity: auto", "Adam on the mean"]
    lines = []
    for problem, sides in _sides(sections).items():
        auto, mean = sides[AUTO], sides[MEAN]
        ratios = [float(auto[name]) / float(mean[name]) for name in ("loss 1/4", "loss 1/2", "loss")]
        shown = ", ".join(f"{ratio:.2f}" if ratio >= 0.1 else f"{ratio:.2g}" for ratio in ratios)
        lines.append([problem, *_losses(sides), shown, auto["stationarity"], mean["stationarity"]])
    return table(head, lines)


def picture(sections: Sections) -> str:
    """Return where the curves of the README's picture end."""
    section = sections["picture"]
    return table(["at equal passes", *section["columns"][1:]], section["rows"])


def forced_rates(sections: Sections) -> str:
    """Return which seeds have trained with learning rates that are too large or too small."""
    section = sections["forced"]
    chosen = [section["columns"].index(name) for name in ("method", "lr", "guard", "trained")]
    chosen.append(next(k for k, name in enumerate(section["columns"]) if name.startswith("larger loss")))
    head = ["method", "learning rate", "safeguard", "trained", "larger loss, median (lowest-highest)"]
    return table(head, [[row[k] for k in chosen] for row in section["rows"]])


def known_fronts(sections: Sections) -> str:
    """Return the rows of the benchmark of fronts on problems whose front is known."""
    columns = ("problem", "method", "seeds", "points", "on front", "hypervolume", "passes")
    return _chosen(sections["fronts"], columns, known=True)


def data_fronts(sections: Sections) -> str:
    """Return the rows of the benchmark of fronts on data."""
    columns = ("problem", "method", "seeds", "points", "hypervolume", "published", "passes", "CPU seconds")
    return _chosen(sections["fronts"], columns, known=False)


def moves(sections: Sections) -> str:
    """Return the benchmark of ``navigate``."""
    section = sections["moves"]
    return table(section["columns"], section["rows"])


def _chosen(section: Mapping[str, Any], columns: Sequence[str], *, known: bool) -> str:
    """Return columns of those rows that have a distance to a known front, or of the others."""
    place, chosen = section["columns"].index("distance"), [section["columns"].index(name) for name in columns]
    rows = [row for row in section["rows"] if bool(row[place]) == known]
    return table(list(columns), [[row[k] for k in chosen] for row in rows])


def _sides(sections: Sections) -> dict[str, dict[str, dict[str, str]]]:
    """Return the rows of the judge by problem and method."""
    section = sections["hands_free"]
    found: dict[str, dict[str, dict[str, str]]] = {}
    for row in section["rows"]:
        if row[1] in _METHODS:
            found.setdefault(row[0], {})[row[1]] = dict(zip(section["columns"], row, strict=True))
    return found


def _losses(sides: Mapping[str, Mapping[str, str]]) -> list[str]:
    return [f"{float(sides[method]['loss']):.3g}" if method in sides else "" for method in _METHODS]
