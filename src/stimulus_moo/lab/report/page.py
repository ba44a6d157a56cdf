"""HTML page of the report, rendered from templates. It is self-contained and makes no network requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from stimulus_moo.lab.report.data import experiment_data, study_data, to_script
from stimulus_moo.lab.report.groups import Group
from stimulus_moo.lab.report.sections import about, experiment_section, study_section

#: Stroke patterns of plotly's dashes in SVG.
_DASHES = {
    "solid": "",
    "dash": "7 3",
    "dot": "2 2.5",
    "dashdot": "7 3 2 3",
    "longdash": "11 3",
    "longdashdot": "11 3 2 3",
}


def page(groups: Sequence[Group], studies: Sequence[Mapping[str, Any]], plotly_js: str) -> str:
    """Return the HTML page, with plotly's script, our own, and all data."""
    data: dict[str, list[Any]] = {
        "experiments": [experiment_data(group) for group in groups],
        "studies": [study_data(study) for study in studies],
    }
    experiments = [experiment_section(*pair) for pair in zip(groups, data["experiments"], strict=True)]
    claims = [study_section(*pair) for pair in zip(studies, data["studies"], strict=True)]
    return render(
        "page.html",
        data,
        plotly_js,
        title=_title([e["title"] for e in experiments], [s["title"] for s in claims]),
        experiments=experiments,
        studies=claims,
        about=about(groups),
    )


def render(template: str, data: Mapping[str, Any], plotly_js: str, **values: Any) -> str:
    """Return a page: a template with the style sheet, plotly's script, our own, and the data of all charts."""
    return (
        _environment()
        .get_template(template)
        .render(
            **values,
            style=_asset("report.css"),
            script=_asset("report.js"),
            plotly=Markup(plotly_js),  # our own scripts and to_script's output are safe; all other text is escaped
            data=Markup(to_script(data)),
        )
    )


def _title(experiments: Sequence[str], studies: Sequence[str]) -> str:
    """Return the titles of one or two sections, else how many there are."""
    titles = [*experiments, *studies]
    if len(titles) <= 2:
        return " and ".join(titles) or "No runs"
    kinds = (("experiment", len(experiments)), ("study", len(studies)))
    plural = {"experiment": "experiments", "study": "studies"}
    return " and ".join(f"{count} {kind if count == 1 else plural[kind]}" for kind, count in kinds if count)


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("stimulus_moo.lab.report"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        undefined=StrictUndefined,
    )
    environment.globals.update(dashes=_DASHES)
    return environment


def _asset(name: str) -> Markup:
    return Markup((files("stimulus_moo.lab.report") / "templates" / name).read_text("utf-8"))
