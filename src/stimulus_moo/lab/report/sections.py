"""Sections of the report as plain data for the templates: one per experiment and one per study."""

from __future__ import annotations

import dataclasses
import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stimulus_moo.lab.experiment import ExperimentSettings
from stimulus_moo.lab.report import scores
from stimulus_moo.lab.report.charts import Chart, experiment_charts
from stimulus_moo.lab.report.data import trace_points
from stimulus_moo.lab.report.groups import Group, step_size
from stimulus_moo.lab.report.tables import Cell, Table, ablation_table, comparison_table, sample_table, test_tables
from stimulus_moo.lab.report.verdict import missing, verdict

_TONES = {
    "ahead": "good",
    "holds": "good",
    "level": "fair",
    "mixed": "fair",
    "holds with another step size": "fair",
    "not conclusive": "fair",
    "not shown": "fair",
    "behind": "poor",
    "does not hold": "poor",
}
#: Settings that the details of an experiment do not list.
_HIDDEN = {"experiment", "method", "seed", "title", "claim", "tasks", "versions", "machine", "started", "resumed"}


@dataclass(frozen=True)
class Badge:
    """A verdict in a coloured box: its text, and a class of the style sheet."""

    text: str
    tone: str


def experiment_section(group: Group, data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values for the template of an experiment; ``data`` is the data of its charts."""
    found = verdict(group)
    words = f"{found.subject} {found.label}" if found.label in ("ahead", "level", "behind") else found.label
    tables = [table for table in (sample_table(group), ablation_table(group), *test_tables(group)) if table]
    steps = sorted({int(s.mean) for entry in group.entries if (s := scores.iterations(entry))})
    return {
        "title": group.title,
        "synthetic": group.synthetic,
        "data": group.fact("data") or "not stated",
        "tasks": len(group.tasks),
        "methods": len(group.methods),
        "seeds": len(group.seeds),
        "iterations": " to ".join(f"{s:,}" for s in dict.fromkeys((steps[0], steps[-1]))) if steps else "—",
        "claim": group.fact("claim"),
        "badge": Badge(words, _TONES.get(found.label, "plain")),
        "sentences": found.sentences,
        "results": comparison_table(group),
        "entries": group.entries,
        "notes": _notes(group),
        "figures": experiment_charts(group, data),
        "tables": [(table, group.entries if _is_by_entry(table, group) else ()) for table in tables],
        "command": command(group),
        "facts": _facts(group),
    }


def study_section(study: Mapping[str, Any], charts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the values for the template of a study; ``charts`` is the data of its charts."""
    label = str(study.get("verdict") or "no verdict")
    figures: list[Chart | str] = []
    for c, chart in enumerate(charts):
        title = str(chart.get("title") or "Chart")
        drawn = any(series.get("y") for series in chart["series"])
        figures.append(Chart("chart", title, panels=[(c, "")]) if drawn else f"{title}: nothing was measured.")
    return {
        "title": str(study.get("title") or study.get("name") or "Study"),
        "seeds": study.get("seeds") or "—",
        "claim": study.get("claim"),
        "badge": Badge(label, _TONES.get(label, "plain")),
        "findings": [str(finding) for finding in study.get("findings") or ()],
        "figures": figures,
        "tables": [_study_table(table) for table in study.get("tables") or ()],
        "command": shlex.join(["stimulus-moo", "run", str(study.get("name"))]),
        "facts": [(str(name), str(value)) for name, value in (study.get("settings") or {}).items()],
    }


def about(groups: Sequence[Group]) -> list[tuple[str, str]]:
    """Return the versions, machines and dates of all runs, as names and values."""
    started = sorted(
        str(run.settings["started"]) for group in groups for run in group.runs if run.settings.get("started")
    )
    return [
        ("Versions", "; ".join(filter(None, dict.fromkeys(_joined(group, "versions") for group in groups)))),
        ("Machine", "; ".join(filter(None, dict.fromkeys(_joined(group, "machine") for group in groups)))),
        ("Runs started", " to ".join(dict.fromkeys((started[0], started[-1]))) if started else ""),
    ]


def command(group: Group, out: str = "runs") -> str:
    """Return the command that repeats an experiment, with every setting that differs from its default."""
    from stimulus_moo.lab.experiments import EXPERIMENTS

    words = ["stimulus-moo", "compare", group.name, "--methods", ",".join(group.methods)]
    words += ["--seeds", str(len(group.seeds)), "--out", out]
    known = EXPERIMENTS.get(group.name)
    if known is None:
        return shlex.join(words)
    first, base = group.runs[0].settings, known.settings
    if known.quick and all(first.get(name) == value for name, value in known.quick.items()):
        words.append("--quick")
        base = base.override(known.quick)
    for field in dataclasses.fields(ExperimentSettings):
        value = first.get(field.name)
        same = all(run.settings.get(field.name) == value for run in group.runs)
        if same and value not in (None, {}) and value != getattr(base, field.name):
            words += [f"--{field.name.replace('_', '-')}", _argument(value)]
    return shlex.join(words)


def _argument(value: Any) -> str:
    if isinstance(value, Mapping):
        return ",".join(f"{name}={item}" for name, item in value.items())
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def _is_by_entry(table: Table, group: Group) -> bool:
    return len(table.rows) == len(group.entries) and table.columns[0] == "Method"


def _notes(group: Group) -> list[str]:
    sentences = missing(group)
    limit = trace_points(group)
    if any(len(run.records) > limit for run in group.runs):
        sentences.append(
            f"Traces are drawn with at most {limit:,} points, evenly picked; the first and the last are kept."
        )
    return sentences


def _facts(group: Group) -> list[tuple[str, str]]:
    names = dict.fromkeys(key for run in group.runs for key in run.settings if key not in {*_HIDDEN, "lr", "lr_of"})
    rates = {entry.label: str(step_size(entry.runs[0])) for entry in group.entries}
    same = len(set(rates.values())) == 1
    rate = next(iter(rates.values())) if same else "; ".join(f"{label} {value}" for label, value in rates.items())
    return [
        ("Step size", rate),
        *((name.replace("_", " "), group.fact(name)) for name in names),
        ("Seeds", ", ".join(map(str, group.seeds))),
        ("Tasks", ", ".join(group.tasks)),
        ("Versions", _joined(group, "versions")),
        ("Machine", _joined(group, "machine")),
    ]


def _joined(group: Group, key: str) -> str:
    """Return the entries of a mapping in the settings as text; different values are joined."""
    found = [run.settings.get(key) for run in group.runs]
    words = [", ".join(f"{k} {v}" for k, v in d.items() if v is not None) for d in found if isinstance(d, dict)]
    return "; ".join(dict.fromkeys(words))


def _study_table(table: Mapping[str, Any]) -> Table:
    rows = tuple(tuple(Cell(_value(value)) for value in row) for row in table.get("rows") or () if row)
    return Table(str(table.get("title", "")), tuple(str(name) for name in table.get("columns") or ()), rows)


def _value(value: Any) -> str:
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return "—"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"
