"""The command line with the tiny experiment and study, in a working directory of its own."""

import json

import pytest
from typer.testing import CliRunner

from stimulus_moo.lab import cli
from stimulus_moo.lab.cli import arguments

from .. import fake_lab


@pytest.fixture(autouse=True)
def place(monkeypatch, tmp_path):
    """Every test has the tiny catalogue and a working directory of its own."""
    monkeypatch.setattr(arguments, "catalogue", fake_lab.catalogue)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STIMULUS_MOO_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("STIMULUS_MOO_DATA", raising=False)
    monkeypatch.setenv("COLUMNS", "160")
    return tmp_path


def call(*arguments, code=0):
    result = CliRunner().invoke(cli.app, [str(argument) for argument in arguments])
    assert result.exit_code == code, result.output
    assert "Traceback" not in result.output
    return result


def settings_of(folder):
    return json.loads((folder / "settings.json").read_text())
