import dataclasses
import sys

import pytest
from typer.testing import CliRunner

import stimulus_moo
from stimulus_moo.errors import DOCS
from stimulus_moo.lab import cli
from stimulus_moo.lab.cli import arguments

from .. import fake_lab
from .conftest import call


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["run", "tinny"], "there is no experiment or study 'tinny'; did you mean 'tiny'?"),
        (["compare", "zzz"], "there is no experiment or study 'zzz'; Known: tiny, squares"),
        (["run", "tiny", "--method", "stimulsu"], "method 'stimulsu' is unknown; did you mean 'stimulus'?"),
        (["compare", "tiny", "--methods", "mgd,smdg"], "method 'smdg' is unknown; did you mean"),
        (["run", "tiny", "--method", "autoo"], "method 'autoo' is unknown; did you mean 'auto'? known are mgd,"),
        (["tune", "tiny", "--lr", "auto"], "tune tries a grid of step sizes, found --lr auto; leave it out"),
        (["run", "tiny", "--batch-size", "65"], "batch_size must be at most the number of samples, 64, found 65"),
        (["run", "tiny", "--set", "colour=1"], "setting 'colour' is unknown"),
        (["run", "tiny", "--set", "colour"], "--set must read NAME=VALUE, found 'colour'"),
        (["run", "squares", "--method", "mgd"], "squares is a study"),
        (["run", "squares", "--lr", "0.1"], "there is no setting of the study 'squares' named 'lr'; Known: sizes"),
        (["run", "squares", "--set", "sizes=3"], "sizes must have the type of [1, 2, 3], found 3"),
        (["run", "squares", "--seed", "1"], "leave out --method and --seed"),
        (["compare", "squares", "--methods", "mgd"], "leave out --methods"),
        (["report", "nowhere"], "there is no directory 'nowhere'"),
        (["report", "."], "holds no runs; make some first"),
        (["data", "check", "minst"], "there is no data set 'minst'; did you mean 'mnist'?"),
        (["data", "list", "--data", "nowhere"], "nowhere: expected the data folder that --data names"),
        (["data", "fetch", "celeba"], "celeba cannot be downloaded"),
    ],
)
def test_what_cannot_be_done_is_one_line_and_exit_code_2(place, arguments, said):
    result = call(*arguments, code=2)
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    assert said in result.stderr
    assert result.stdout == ""
    assert not (place / "runs").exists()


def test_debug_shows_the_error_itself():
    result = CliRunner().invoke(cli.app, ["run", "tyni", "--debug"])
    assert isinstance(result.exception, stimulus_moo.InvalidOption)


def test_a_directory_that_cannot_be_made_is_one_line(place):
    (place / "file").write_text("")
    result = call("run", "tiny", "--out", "file/x", code=2)
    assert result.stderr.startswith("error: ")
    assert "file" in result.stderr


def test_what_should_not_happen_is_one_line_and_exit_code_70(monkeypatch):
    broken = dataclasses.replace(fake_lab.TINY, build=lambda *_: 1 / 0)
    monkeypatch.setattr(arguments, "catalogue", lambda: ({"tiny": broken}, {}))
    said = call("run", "tiny", code=70).stderr
    assert said == "error: ZeroDivisionError: division by zero; this is a bug, --debug shows the traceback\n"


def test_ctrl_c_between_steps_is_clean(place, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    study = dataclasses.replace(fake_lab.SQUARES, run=interrupted)
    monkeypatch.setattr(arguments, "catalogue", lambda: ({}, {"squares": study}))
    monkeypatch.setattr(sys, "argv", ["stimulus-moo", "run", "squares"])
    result = call("run", "squares", code=130)
    assert result.stderr.splitlines()[-1] == "  stimulus-moo run squares --resume"


def test_warnings_are_lines(place):
    call("run", "tiny", "--quick", "--out", "x")
    with (place / "x/metrics.jsonl").open("a") as file:
        file.write("half a li")
    result = call("run", "tiny", "--quick", "--out", "x", "--resume")
    assert result.stderr.splitlines()[-1].startswith("warning: x/metrics.jsonl, line 7: cut off after 9 bytes")


@pytest.mark.parametrize(
    ("arguments", "page"),
    [
        (["run", "tinny"], "lab.html"),
        (["report", "nowhere"], "lab.html"),
        (["rank", "predict", "nowhere.txt", "--model", "nowhere.json"], "ranking.html#saving"),
        (["rank", "fit", "nowhere.txt", "--model", "a/b/c.json"], "ranking.html#command-line"),
    ],
)
def test_errors_name_the_page_that_says_more(arguments, page):
    assert call(*arguments, code=2).stderr.endswith(f"; see {DOCS}{page}\n")
