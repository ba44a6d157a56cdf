"""Plug-ins: files and entry points add names to the tables, for the library and for the command line."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn

from stimulus_moo import METHODS, WEIGHTINGS, InvalidOption, MiniBatch, MultiGradient, StimulusWarning, fit, plugins

X = torch.randn(24, 4, generator=torch.Generator().manual_seed(0))
PLUGIN = """
from stimulus_moo import METHODS, WEIGHTINGS, Fixed, Method, MiniBatch
from stimulus_moo.lab.experiments import EXPERIMENTS
from dataclasses import replace
from stimulus_moo.methods import sgd

WEIGHTINGS["first-only"] = lambda: Fixed([1.0, 0.0])
METHODS["first-only"] = Method("first-only", "First only", lambda s: MiniBatch(), lambda s: Fixed([1.0, 0.0]), sgd)
EXPERIMENTS["tiny-digits"] = replace(EXPERIMENTS["digits"], name="tiny-digits", title="Tiny digits")
"""


def losses(model: nn.Module, x: Any) -> Any:
    return model(x).square().mean(0)


@pytest.fixture(autouse=True)
def tables(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    from stimulus_moo.lab.experiments import EXPERIMENTS

    before = [(table, dict(table)) for table in (METHODS, WEIGHTINGS, EXPERIMENTS)]
    monkeypatch.setattr(plugins, "_loaded", set())
    yield
    for table, rows in before:
        table.clear()
        table.update(rows)


@pytest.mark.parametrize("name", ["min-norm", "normalised", "balanced", "equal", "Balanced"])
def test_weightings_have_names(name: str) -> None:
    built = WEIGHTINGS[name.lower()]()
    found = MultiGradient(nn.Linear(4, 2), losses, MiniBatch(), name)
    assert type(found.weighting) is type(built)
    assert fit(nn.Linear(4, 2), losses, X, weighting=name, steps=2, batch_size=4).steps == 2


def test_an_unknown_name_is_told_with_the_closest() -> None:
    with pytest.raises(InvalidOption, match=r"weighting 'balansed' is unknown; did you mean 'balanced'\? known are "):
        fit(nn.Linear(4, 2), losses, X, weighting="balansed")


@pytest.mark.filterwarnings("ignore")  # torchjd's solvers warn on their own behalf
def test_weightings_of_torchjd_have_names() -> None:
    aggregation = pytest.importorskip("torchjd.aggregation")
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    found = MultiGradient(model, losses, MiniBatch(), "upgrad").backward(X).weights
    expected = MultiGradient(model, losses, MiniBatch(), aggregation.UPGradWeighting()).backward(X).weights
    assert torch.equal(found, expected)
    assert fit(nn.Linear(4, 2), losses, X, weighting="upgrad", lr=0.1, steps=2).steps == 2


def test_a_missing_torchjd_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchjd", None)
    monkeypatch.setitem(sys.modules, "torchjd.aggregation", None)
    with pytest.raises(ImportError, match="weighting 'upgrad' needs TorchJD"):
        fit(nn.Linear(4, 2), losses, X, weighting="upgrad", lr=0.1, steps=2)


def test_an_entry_point_is_loaded_when_its_name_is_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("an_installed_plugin")
    exec(PLUGIN, module.__dict__)
    module.register = lambda: WEIGHTINGS.setdefault("last-only", WEIGHTINGS["first-only"])  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "an_installed_plugin", module)
    good = EntryPoint("good", "an_installed_plugin:register", plugins.GROUP)
    bad = EntryPoint("bad", "no_such_module", plugins.GROUP)
    monkeypatch.setattr(plugins, "entry_points", lambda group: [bad, good])
    with pytest.warns(StimulusWarning, match=r"the plug-in bad \(no_such_module\) failed and is left out: ModuleNot"):
        mg = MultiGradient(nn.Linear(4, 2), losses, MiniBatch(), "last-only")
    assert mg.backward(X).weights.tolist() == [1.0, 0.0]
    assert fit(nn.Linear(4, 2), losses, X, method="first-only", lr=0.1, steps=2).method == "first-only"


def test_the_command_line_takes_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runner = pytest.importorskip("typer.testing").CliRunner()
    monkeypatch.setattr("stimulus_moo.lab.report.figures.FIGURES", {})  # they take most of the time
    from stimulus_moo.lab.cli import app

    (tmp_path / "mine.py").write_text(PLUGIN)
    plugin = ["--plugin", str(tmp_path / "mine.py")]
    listed = runner.invoke(app, [*plugin, "list"])
    assert listed.exit_code == 0
    assert "first-only" in listed.output
    assert "tiny-digits" in listed.output
    options = ["--quick", "--steps", "4", "--out", str(tmp_path / "run")]
    run = runner.invoke(app, [*plugin, "run", "tiny-digits", "--method", "first-only", *options])
    assert run.exit_code == 0, run.output
    other = [*options[:-1], str(tmp_path / "run" / "other"), "--method", "smgd", "--weighting", "first-only"]
    run = runner.invoke(app, [*plugin, "run", "tiny-digits", *other])
    assert run.exit_code == 0, run.output
    lines = (tmp_path / "run" / "other" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["weights"] for line in lines] == [[1.0, 0.0]] * 4
    report = runner.invoke(app, [*plugin, "report", str(tmp_path / "run")])
    assert report.exit_code == 0, report.output
    page = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert "First only" in page
    assert "SMGD, first-only weights" in page


def test_a_file_that_fails_is_told(tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text("1 / 0")
    with pytest.raises(InvalidOption, match=r"bad.py' failed with ZeroDivisionError: division by zero"):
        plugins.load_file(tmp_path / "bad.py")
    with pytest.raises(InvalidOption, match=r"plugin must be a Python file, found 'none.py', which does not exist"):
        plugins.load_file("none.py")
