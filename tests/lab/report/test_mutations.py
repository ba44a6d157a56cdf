"""Run directories with one field of a wrong type: the run is named and left out, and the others are reported."""

from __future__ import annotations

import json
import math
import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from stimulus_moo import StimulusWarning
from stimulus_moo.lab.cli.tables import print_results, print_study
from stimulus_moo.lab.report import figures, write_report
from stimulus_moo.lab.report.groups import group_runs
from stimulus_moo.lab.report.page import page
from stimulus_moo.lab.report.reproduction import _own, _study
from stimulus_moo.lab.runs import RunError, load_runs, load_studies
from stimulus_moo.lab.runs.runner import run_one, run_study

from ..fake_lab import SQUARES, TINY
from ..fake_runs import fake_runs, fake_study, store

QUICK = TINY.settings.override({"steps": 4, "evaluate_every": 2, "weights": [0.5, 0.5]})
MISSING = object()
VALUES = (None, "text", 7, [1, "a"], {"a": [1]}, math.nan, 1e300, 10**400, MISSING)

#: Fields whose entries may hold anything, and those where a number may also be a text.
FREE = re.compile(r"(versions|machine|lr_of|resumed|settings)\..*|tables\.0\.(rows|columns)\..*")
EITHER = re.compile(r"lr|period|reweigh|epsilon|sigma2|skipped")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run that was resumed, and a study with a chart."""
    folder = tmp_path_factory.mktemp("runs")
    run_one(TINY, "stimulus", QUICK, 0, folder / "run")
    (folder / "run" / "summary.json").rename(folder / "summary")
    run_one(TINY, "stimulus", QUICK, 0, folder / "run", resume=True)
    (folder / "study").mkdir()
    (folder / "study" / "study.json").write_text(json.dumps(fake_study()))
    return folder


@pytest.fixture(scope="module")
def others(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Another run of the same experiment, and another study."""
    folder = tmp_path_factory.mktemp("others")
    run_one(TINY, "mgd", QUICK, 0, folder / "run")
    run_study(SQUARES, SQUARES.settings, 1, folder / "study")
    return folder


def fields(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of every entry, of a list only the first and the last."""
    if path:
        yield path
    if isinstance(value, dict):
        for key, item in value.items():
            yield from fields(item, (*path, key))
    elif isinstance(value, list):
        for i in sorted({0, len(value) - 1}) if value else ():
            yield from fields(value[i], (*path, i))


def kind(value: Any) -> type:
    """Return the JSON type of a value; all numbers are of one type, except those that cannot be drawn."""
    number = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= 1e150
    return (
        float if number else complex if isinstance(value, int | float) and not isinstance(value, bool) else type(value)
    )


def mutations(content: Any) -> Iterator[tuple[str, Any, bool, str]]:
    """Yield the name of a field, another value, whether it is known to be wrong, and the changed content."""
    for path in fields(content):
        name, text = ".".join(map(str, path)), json.dumps(content)
        for value in VALUES if not FREE.fullmatch(name) else (7, [1, "a"], MISSING):
            made = json.loads(text)
            place = made
            for key in path[:-1]:
                place = place[key]
            old = place[path[-1]]
            free = FREE.fullmatch(name) or (EITHER.fullmatch(name) and kind(value) in (str, float))
            wrong = not free and value is not MISSING and None not in (old, value) and kind(value) is not kind(old)
            if value is MISSING:
                del place[path[-1]]
            else:
                place[path[-1]] = value
            yield name, value, wrong, json.dumps(made)


def draw(folder: Path, others: Path, charts: bool = False) -> None:
    """Make everything that reads runs and studies: page, figures, tables and the page of ``reproduce``."""
    found = [*load_runs(folder), *load_runs(others)]
    studies = [*load_studies(folder), *load_studies(others)]
    groups, console = group_runs(found), Console(quiet=True)
    text = page(groups, studies, "")
    assert "MGD" in text
    assert "Squares" in text
    print_results(console, found)
    for study in studies:
        print_study(console, study)
        _study(study)
        for chart in (study.get("charts") or ()) if charts else ():
            figures.chart_figure(chart)
    for group in groups:
        _own(group)


def loaded(folder: Path) -> tuple[int, list[str]]:
    """Return the number of runs and studies, and the warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = len(load_runs(folder)) + len(load_studies(folder))
    assert all(isinstance(warning.message, StimulusWarning) for warning in caught)
    return found, [str(warning.message) for warning in caught]


def contents(path: Path) -> Iterator[tuple[str, Any, bool, str]]:
    """Yield the mutations of a file; for ``metrics.jsonl`` those of its last line, which has all fields."""
    if path.suffix == ".json":
        yield from mutations(json.loads(path.read_text()))
        return
    *lines, last = path.read_text().splitlines()
    for name, value, wrong, text in mutations(json.loads(last)):
        yield name, value, wrong, "\n".join([*lines, text]) + "\n"


@pytest.mark.slow
@pytest.mark.parametrize("file", ["run/settings.json", "run/metrics.jsonl", "run/summary.json", "study/study.json"])
def test_a_field_of_a_wrong_type_is_named_and_the_others_are_reported(file: str, runs: Path, others: Path) -> None:
    path = runs / file
    whole, accepted, tried = path.read_text(), [], 0
    draw(runs, others)
    try:
        for name, value, wrong, text in contents(path):
            tried += 1
            path.write_text(text)
            found, problems = loaded(path.parent)
            assert all(str(path.parent) in problem for problem in problems)
            if wrong and not problems:
                accepted.append((name, value))
            is_drawn = value is MISSING or (value is None and file in ("run/metrics.jsonl", "run/summary.json"))
            if found and not problems and is_drawn:
                draw(
                    path.parent, others, charts=name.startswith("charts")
                )  # with problems it is the report without the run, or without the line
    finally:
        path.write_text(whole)
    assert accepted == []
    assert tried > 100


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "change"),
    [
        ("settings.json", {"tasks": "text"}),
        ("settings.json", {"lr": [1]}),
        ("summary.json", {"test": {"accuracy": "high"}}),
        ("summary.json", {"full_losses": [1.0, "low"]}),
        ("summary.json", {"full_losses": [1.0]}),
        ("study.json", {"charts": [{"series": [{"x": [1], "y": "text"}]}]}),
    ],
)
def test_the_report_of_a_folder_with_a_bad_run_comes_out(
    file: str, change: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(figures, "_figures", lambda groups, studies: [])
    good = fake_runs(2, ("mgd", "stimulus"), 1, steps=20)
    folder = store(good, [fake_study("one"), fake_study("two")], tmp_path / "runs")
    bad = folder / ("study-0" if file == "study.json" else "1") / file
    bad.write_text(json.dumps({**json.loads(bad.read_text()), **change}))
    with pytest.warns(StimulusWarning, match=re.escape(str(bad.parent))):
        text = write_report(folder).read_text()
    assert "MGD" in text
    left = {"study.json": "stimulus-moo run one"}.get(file, "stimulus-moo compare fake --methods mgd,stimulus")
    assert left not in text


def test_a_folder_with_nothing_but_a_bad_run_is_refused(tmp_path: Path) -> None:
    folder = store(fake_runs(2, ("mgd",), 1, steps=20), [], tmp_path / "runs")
    path = folder / "0" / "settings.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "seed": "zero"}))
    with (
        pytest.warns(StimulusWarning, match=r"seed must be .*, found 'zero'; the run is left out"),
        pytest.raises(RunError, match="nothing that can be reported"),
    ):
        write_report(folder)


@pytest.mark.parametrize(
    ("file", "field", "value"),
    [("settings.json", "resumed", 3), ("summary.json", "diverged", None), ("summary.json", "test", [1])],
)
def test_resuming_a_bad_run_is_refused(tmp_path: Path, file: str, field: str, value: Any) -> None:
    run_one(TINY, "mgd", QUICK, 0, tmp_path)
    path = tmp_path / file
    path.write_text(json.dumps({**json.loads(path.read_text()), field: value}))
    with pytest.raises(RunError, match=f"{re.escape(str(path))}: {field} must be"):
        run_one(TINY, "mgd", QUICK, 0, tmp_path, resume=True)


def test_resuming_a_bad_study_is_refused(tmp_path: Path) -> None:
    run_study(SQUARES, SQUARES.settings, 1, tmp_path)
    path = tmp_path / "study.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "tables": "none"}))
    with pytest.raises(RunError, match="tables must be"):
        run_study(SQUARES, SQUARES.settings, 1, tmp_path, resume=True)
