import sys

import pytest
from typer.testing import CliRunner

import stimulus_moo
from stimulus_moo import METHODS
from stimulus_moo.__main__ import main
from stimulus_moo.lab import cli
from stimulus_moo.lab.cli import arguments
from stimulus_moo.lab.experiments import EXPERIMENTS
from stimulus_moo.lab.studies import STUDIES

from .conftest import call


def test_version():
    assert call("--version").stdout == f"stimulus-moo {stimulus_moo.__version__}\n"


@pytest.mark.parametrize("command", [(), ("run",), ("compare",), ("report",), ("demo",), ("list",), ("data", "fetch")])
def test_every_command_explains_itself(command):
    assert "Usage:" in call(*command, "--help").stdout


def test_list_names_every_experiment_study_and_method(monkeypatch):
    monkeypatch.setattr(arguments, "catalogue", lambda: (EXPERIMENTS, STUDIES))
    said = call("list").stdout
    for name in (*EXPERIMENTS, *STUDIES, *METHODS, "auto"):
        assert f" {name} " in said


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("run ti", ["tiny"]),
        ("compare squ", ["squares"]),
        ("tune ti", ["tiny"]),
        ("run tiny --method stimulus-", ["stimulus-m", "stimulus-m+", "stimulus-adam"]),
        ("run tiny --method a", ["auto"]),
        ("compare tiny --methods mgd,smg", ["mgd,smgd"]),
        ("data fetch river", ["riverflow"]),
        ("data check river", ["riverflow"]),
        ("rank fit train.txt --method moco", ["moco", "moco+"]),
        ("rank fit train.txt --loss rank", ["ranknet"]),
        ("rank ev", ["evaluate"]),
    ],
)
def test_shells_complete_names(typed, offered):
    words = f"stimulus-moo {typed}"
    environment = {
        "_STIMULUS_MOO_COMPLETE": "complete_bash",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split()) - 1),
    }
    result = CliRunner().invoke(cli.app, [], env=environment, prog_name="stimulus-moo")
    assert result.stdout.split() == offered


@pytest.mark.parametrize("package", ["typer", "rich"])
def test_without_the_lab_s_packages_it_says_what_to_install(monkeypatch, capsys, package):
    for name in list(sys.modules):
        if name.partition(".")[0] == package or name.startswith(
            ("stimulus_moo.lab.cli", "stimulus_moo.lab.runs.watch")
        ):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.delattr(stimulus_moo.lab, "cli")
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 2
    assert capsys.readouterr().err == (
        f"error: the command line needs the package {package!r}: pip install 'stimulus-moo[lab]'; "
        "see https://stimulus-moo.readthedocs.io/en/latest/get-started.html#1-install\n"
    )
