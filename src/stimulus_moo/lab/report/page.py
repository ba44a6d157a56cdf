"""The report's page: a summary, a section per experiment and per study, and the script's data, as one HTML document."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files
from typing import Any

from stimulus_moo.lab.experiment import ExperimentSettings
from stimulus_moo.lab.report import parts, scores
from stimulus_moo.lab.report.curves import smoothing_window, weight_curve
from stimulus_moo.lab.report.data import experiment_data, has_data, study_data, to_script, trace_points
from stimulus_moo.lab.report.groups import Group, step_size
from stimulus_moo.lab.report.tables import ablation_table, comparison_table, sample_table, test_tables
from stimulus_moo.lab.report.verdict import Verdict, missing, verdict

#: Up to so many tasks have a chart each; more are chosen from a list.
PANELS = 4

_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:; connect-src 'none'"
)


def page(groups: Sequence[Group], studies: Sequence[Mapping[str, Any]], plotly_js: str, name: str) -> str:
    """Return the whole document, with plotly's script and everything else inside."""
    found = [verdict(group) for group in groups]
    data: dict[str, list[Any]] = {
        "experiments": [experiment_data(group) for group in groups],
        "studies": [study_data(study) for study in studies],
    }
    sections = [_summary(groups, found, studies, name)]
    for i, (group, said) in enumerate(zip(groups, found, strict=True)):
        sections.append(_experiment(i, group, said, data["experiments"][i]))
    sections += [_study(i, study, data["studies"][i]) for i, study in enumerate(studies)]
    assets = files("stimulus_moo.lab.report") / "templates"
    style, script = ((assets / f"report.{ending}").read_text("utf-8") for ending in ("css", "js"))
    title = escape(f"{name}: stimulus-moo report")
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        f"<title>{title}</title>\n<style>\n{style}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(sections)
        + '\n</main>\n<noscript><p class="callout">The figures need JavaScript; all tables are above, and the folder '
        "figures/ has every figure as PNG and PDF.</p></noscript>\n"
        f'<script type="application/json" id="data">{to_script(data)}</script>\n'
        f"<script>{plotly_js}</script>\n<script>\n{script}</script>\n</body>\n</html>\n"
    )


def command(group: Group, out: str = "runs") -> str:
    """Return the command that runs an experiment again, with every setting that is not its default."""
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


def _summary(groups: Sequence[Group], found: Sequence[Verdict], studies: Sequence[Mapping[str, Any]], name: str) -> str:
    rows = "".join(_overview(f"e{i}", g, v) for i, (g, v) in enumerate(zip(groups, found, strict=True)))
    for i, study in enumerate(studies):
        told = parts.badge(str(study.get("verdict") or "no verdict"))
        seeds = escape(str(study.get("seeds") or "—"))
        rows += (
            f'<tr><th scope="row"><a href="#s{i}">{escape(_title(study))}</a></th><td>{told}</td>'
            f"<td>a study of many runs</td><td></td><td></td><td>{seeds}</td><td></td></tr>"
        )
    titles = ("What", "Verdict", "Data", "Tasks", "Methods", "Seeds", "Iterations")
    head = "".join(f'<th scope="col">{title}</th>' for title in titles)
    versions = dict.fromkeys(_joined(group, "versions") for group in groups)
    started = sorted(
        str(run.settings["started"]) for group in groups for run in group.runs if run.settings.get("started")
    )
    about = [
        ("Versions", "; ".join(filter(None, versions))),
        ("Machine", "; ".join(filter(None, dict.fromkeys(_joined(group, "machine") for group in groups)))),
        ("Runs started", " to ".join(dict.fromkeys((started[0], started[-1]))) if started else ""),
    ]
    nothing = "" if rows else '<p class="callout">No runs and no studies were found here.</p>'
    return (
        f'<header id="top"><p class="brand">stimulus-moo</p><h1>{escape(name)}</h1>'
        "<p>Stochastic multi-objective methods side by side. Verdicts compare the best STIMULUS variant with the best "
        "other method and the best scalarisation, at the end of training and at equal cost; &ldquo;ahead&rdquo; means "
        "every seed is better than every seed of the other.</p></header>"
        f'<section id="summary"><h2>Summary</h2>{nothing}<div class="scroll" role="region" tabindex="0" '
        'aria-label="Summary"><table class="overview">'
        f"<thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>"
        f"{parts.facts(about)}</section>"
    )


def _overview(anchor: str, group: Group, said: Verdict) -> str:
    data = escape(group.fact("data") or "not stated")
    synthetic = ' <span class="badge synthetic">synthetic data</span>' if group.synthetic else ""
    steps = sorted({int(s.mean) for entry in group.entries if (s := scores.iterations(entry))})
    shown = " to ".join(f"{step:,}" for step in dict.fromkeys((steps[0], steps[-1]))) if steps else "—"
    return (
        f'<tr><th scope="row"><a href="#{anchor}">{escape(group.title)}</a></th><td>{_badge(said)}</td>'
        f'<td class="wrap">{data}{synthetic}</td>'
        f"<td>{len(group.tasks)}</td><td>{len(group.methods)}</td><td>{len(group.seeds)}</td><td>{shown}</td></tr>"
    )


def _experiment(i: int, group: Group, said: Verdict, data: Mapping[str, Any]) -> str:
    synthetic = '<span class="badge synthetic">synthetic data</span>' if group.synthetic else ""
    claim = f'<p class="claim"><b>The claim.</b> {escape(group.fact("claim"))}</p>' if group.fact("claim") else ""
    tables = [sample_table(group), ablation_table(group), *test_tables(group)]
    by_entry = [len(table.rows) == len(group.entries) and table.columns[0] == "Method" for table in tables if table]
    shown = [table for table in tables if table]
    return (
        f'<section class="experiment" id="e{i}" data-experiment="{i}"><h2>{escape(group.title)} {synthetic}</h2>{claim}'
        f'<div class="verdict">{_badge(said)}{parts.bullets(said.sentences)}</div>'
        f"{parts.table_html(comparison_table(group), group.entries)}"
        f"{_notes(group)}{parts.legend_html(group)}"
        f"{_figures(group, data)}"
        + "".join(parts.table_html(t, group.entries if own else ()) for t, own in zip(shown, by_entry, strict=True))
        + _details(group)
        + "</section>"
    )


def _notes(group: Group) -> str:
    sentences = missing(group)
    limit = trace_points(group)
    if any(len(run.records) > limit for run in group.runs):
        sentences.append(
            f"Traces are drawn with at most {limit:,} points, evenly picked; the first and the last are kept."
        )
    return f'<div class="callout"><b>Good to know</b>{parts.bullets(sentences)}</div>' if sentences else ""


def _figures(group: Group, data: Mapping[str, Any]) -> str:
    several = any(len(entry.runs) > 1 for entry in group.entries)
    band = "Line: mean over seeds; band: lowest to highest seed." if several else "One seed each, so there is no band."
    tasks = list(enumerate(group.tasks))
    few = len(tasks) <= PANELS
    scale = "log" if data["log"] else "linear"
    shown = []
    if has_data(data, "loss"):
        columns = [(len(tasks), "Mean over tasks"), (len(tasks) + 1, "Worst task"), *tasks]
        layout: dict[str, Any] = {"panels": tasks} if few else {"columns": columns}
        title = "Training loss" + ("" if few else f", {len(tasks)} tasks")
        shown.append(
            parts.figure_html(
                "loss", title, f"Over the whole training set. {band}", axis="iterations", scale=scale, **layout
            )
        )
    else:
        shown.append('<p class="callout">No training loss over the whole training set: there is no loss figure.</p>')
    if has_data(data, "stationarity"):
        caption = f"The smallest squared norm of a weighted gradient: 0 at a Pareto-stationary point. {band}"
        shown.append(parts.figure_html("stationarity", "Pareto stationarity", caption, axis="gradients", scale="log"))
    else:
        shown.append('<p class="callout">Stationarity was not evaluated: there is no stationarity figure.</p>')
    if len(tasks) >= 3 and has_data(data, "normalised"):
        caption = "Loss at the end divided by the largest over the methods; closer to the centre is better."
        numbers = " Numbers are the tasks in order." if len(tasks) > 12 else ""
        shown.append(parts.figure_html("radar", "Normalised losses", caption + numbers))
        if len(tasks) > 12:
            shown.append(parts.figure_html("normalised", "Normalised losses by task", "As above; darker is better."))
    if has_data(data, "weights"):
        shown += _weight_figures(group, tasks, few)
    return "".join(shown)


def _weight_figures(group: Group, tasks: Sequence[tuple[int, str]], few: bool) -> list[str]:
    lengths = [len(curve.x) for entry in group.entries if (curve := weight_curve(entry)) is not None]
    window = smoothing_window(max(lengths))
    caption = f"Mean over seeds, moving average of {window} iterations; faint: not averaged over iterations."
    layout: dict[str, Any] = {"panels": tasks} if few else {"columns": tasks}
    shown = [parts.figure_html("weights", "Weights λ over time", caption, **layout)]
    if len(tasks) >= 3:
        caption = "Who gets the weight: λ averaged over all iterations and seeds."
        shown.append(parts.figure_html("shares", "Mean weight of each task", caption))
    return shown


def _details(group: Group) -> str:
    hidden = {"experiment", "method", "seed", "title", "claim", "tasks", "versions", "machine", "started", "resumed"}
    names = dict.fromkeys(key for run in group.runs for key in run.settings if key not in {*hidden, "lr", "lr_of"})
    rates = {entry.label: str(step_size(entry.runs[0])) for entry in group.entries}
    same = len(set(rates.values())) == 1
    rate = next(iter(rates.values())) if same else "; ".join(f"{label} {value}" for label, value in rates.items())
    pairs = [
        ("Step size", rate),
        *((name.replace("_", " "), group.fact(name)) for name in names),
        ("Seeds", ", ".join(map(str, group.seeds))),
        ("Tasks", ", ".join(group.tasks)),
        ("Versions", _joined(group, "versions")),
        ("Machine", _joined(group, "machine")),
    ]
    run_again = f"<p>To run it again:</p><pre><code>{escape(command(group))}</code></pre>"
    return f"<details><summary>Settings, versions, command</summary>{run_again}{parts.facts(pairs)}</details>"


def _study(i: int, study: Mapping[str, Any], charts: Sequence[Mapping[str, Any]]) -> str:
    told = str(study.get("verdict") or "no verdict")
    claim = f'<p class="claim"><b>The claim.</b> {escape(str(study["claim"]))}</p>' if study.get("claim") else ""
    drawn = []
    for c, chart in enumerate(charts):
        title = str(chart.get("title") or "Chart")
        if any(series.get("y") for series in chart["series"]):
            drawn.append(parts.figure_html("chart", title, "", panels=[(c, "")]))
        else:
            drawn.append(f'<p class="callout">{escape(title)}: nothing was measured.</p>')
    tables = "".join(parts.table_html(parts.study_table(table)) for table in study.get("tables") or ())
    settings = parts.facts((str(k), str(v)) for k, v in (study.get("settings") or {}).items())
    again = f"<pre><code>{escape(shlex.join(['stimulus-moo', 'run', str(study.get('name'))]))}</code></pre>"
    return (
        f'<section class="study" id="s{i}" data-study="{i}"><h2>{escape(_title(study))}</h2>{claim}'
        f'<div class="verdict">{parts.badge(told)}{parts.bullets(study.get("findings") or ())}</div>'
        f"{''.join(drawn)}{tables}<details><summary>Settings, command</summary>{again}{settings}</details></section>"
    )


def _badge(said: Verdict) -> str:
    words = f"STIMULUS {said.label}" if said.label in ("ahead", "level", "behind") else said.label
    return parts.badge(said.label, words)


def _title(study: Mapping[str, Any]) -> str:
    return str(study.get("title") or study.get("name") or "Study")


def _joined(group: Group, key: str) -> str:
    """Return what a dict in the settings says, in words; several answers joined."""
    found = [run.settings.get(key) for run in group.runs]
    words = [", ".join(f"{k} {v}" for k, v in d.items() if v is not None) for d in found if isinstance(d, dict)]
    return "; ".join(dict.fromkeys(words))
