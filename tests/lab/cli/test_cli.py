import dataclasses
import io
import json
import sys

import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner

import stimulus_moo
from stimulus_moo import METHODS
from stimulus_moo.__main__ import main
from stimulus_moo.errors import DOCS
from stimulus_moo.lab import cli
from stimulus_moo.lab.cli import arguments, compare
from stimulus_moo.lab.cli.demo import DEMO_SEEDS
from stimulus_moo.lab.cli.setting_options import OPTIONS, experiment_settings
from stimulus_moo.lab.experiment import ExperimentSettings
from stimulus_moo.lab.experiments import EXPERIMENTS
from stimulus_moo.lab.report.groups import step_size
from stimulus_moo.lab.runs.reading import load_runs
from stimulus_moo.lab.runs.runner import BASELINES
from stimulus_moo.lab.runs.watch import Watch
from stimulus_moo.lab.studies import STUDIES
from stimulus_moo.training import checkpoint

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


def test_every_setting_is_an_option():
    assert set(OPTIONS) == {field.name for field in dataclasses.fields(ExperimentSettings)}
    said = call("run", "--help").stdout
    for name in OPTIONS:
        assert f"--{name.replace('_', '-')}" in said


def test_run_writes_the_run_directory_itself(place):
    result = call("run", "tiny", "--method", "mgd", "--seed", 2, "--steps", 3, "--out", "here")
    assert (settings_of(place / "here")["seed"], settings_of(place / "here")["steps"]) == (2, 3)
    assert "tiny, mgd, seed 2: 3 steps, 192 samples, 192 gradients" in result.stderr
    assert "Training set: 64 samples; seed 2." in result.stdout
    assert "made up (synthetic: made by a program)" in result.stdout
    assert "kept in here" in result.stdout


def test_run_without_out_uses_runs(place):
    call("run", "tiny", "--quick")
    assert settings_of(place / "runs/tiny/stimulus-m/seed-0")["steps"] == 6


def test_every_setting_reaches_the_run(place):
    given = {
        "lr": 0.01,
        "momentum": 0.25,
        "batch_size": 4,
        "period": 5,
        "guard": False,
        "steps": 2,
        "gradients": 999,
        "n": 32,
        "evaluate_every": 1,
        "epsilon": 0.1,
        "sigma2": 2.5,
        "sigma2_of": {"stimulus-m+": 0.5},
        "files": "elsewhere",
        "targets": 3,
        "c_gamma": 3.0,
        "c_epsilon": 4.0,
        "alpha": 0.5,
        "beta": 0.75,
        "gamma": 0.125,
        "rho": 0.5,
        "weights": [0.25, 0.75],
        "lr_of": {"mgd": 0.5, "moco+": 0.25},
    }
    assert set(given) == set(OPTIONS)
    spelt = {"weights": "0.25,0.75", "lr_of": "MGD=0.5,moco+=0.25", "sigma2_of": "stimulus-m+=0.5"}
    shown = {name: spelt.get(name, value) for name, value in given.items() if name != "guard"}
    options = ["--no-guard", *(f"--{name.replace('_', '-')}={value}" for name, value in shown.items())]
    call("run", "tiny", "--method", "stimulus+", "--out", "x", *options)
    kept = settings_of(place / "x")
    assert {name: kept[name] for name in given} == given
    assert kept["n_train"] == 32


def test_lr_counts_for_every_method_also_those_with_their_own(place):
    call("run", "tiny", "--method", "moco", "--steps", 1, "--out", "own")
    call("run", "tiny", "--method", "moco", "--steps", 1, "--out", "given", "--lr", 0.2)
    assert json.loads((place / "own/summary.json").read_text())["lr"] == 0.01
    assert json.loads((place / "given/summary.json").read_text())["lr"] == 0.2


def with_rates(monkeypatch, **rates):
    settings = fake_lab.TINY.settings.override({"lr_of": rates})
    tiny = dataclasses.replace(fake_lab.TINY, settings=settings)
    monkeypatch.setattr(arguments, "catalogue", lambda: ({"tiny": tiny}, {}))


def rates_of(folder):
    return {run.method: step_size(run) for run in load_runs(folder)}


def test_a_comparison_with_lr_auto_keeps_the_rate_of_what_cannot_take_it(place, monkeypatch):
    with_rates(monkeypatch, **{"mgd": 0.1, "scalarisation-adam": 0.02})
    options = ["compare", "tiny", "--methods", "mgd,stimulus", "--lr", "auto", "--seeds", 1, "--steps", 2]
    call(*options, "--out", "x")
    found = rates_of(place / "x")
    assert found == {"mgd": "auto", "stimulus": "auto", "scalarisation": "auto", "scalarisation-adam": 0.02}
    call(*options, "--lr-of", "stimulus=0.3", "--out", "y")
    assert rates_of(place / "y") == {**found, "stimulus": 0.3}


def test_every_experiment_can_be_compared_with_lr_auto():
    for experiment in EXPERIMENTS.values():
        settings = experiment_settings(experiment, True, {"lr": "auto"}, ())
        rates = {method: settings.for_method(method)["lr"] for method in METHODS}
        assert {method for method, lr in rates.items() if lr != "auto"} == {"scalarisation-adam"}


@pytest.mark.parametrize("command", ["run", "compare"])
def test_lr_auto_without_a_rate_for_what_cannot_take_it_is_refused_before_the_first_run(place, command):
    method = ["--method", "scalarisation-adam"] if command == "run" else []
    said = call(command, "tiny", *method, "--lr", "auto", "--out", "x", code=2).stderr
    assert "the step size of scalarisation-adam must be a number, found 'auto'" in said
    assert "--lr-of scalarisation-adam=RATE" in said
    assert not (place / "x").exists()


def test_the_rate_of_a_single_method_may_be_auto(place):
    call("run", "tiny", "--method", "stimulus", "--lr-of", "stimulus=auto", "--steps", 2, "--out", "x")
    assert rates_of(place / "x") == {"stimulus": "auto"}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["run", "tinny"], "there is no experiment or study 'tinny'; did you mean 'tiny'?"),
        (["compare", "zzz"], "there is no experiment or study 'zzz'; Known: tiny, squares"),
        (["run", "tiny", "--method", "stimulsu"], "method 'stimulsu' is unknown; did you mean 'stimulus'?"),
        (["compare", "tiny", "--methods", "mgd,smdg"], "method 'smdg' is unknown; did you mean"),
        (["run", "tiny", "--method", "autoo"], "method 'autoo' is unknown; did you mean 'auto'? known are auto, mgd,"),
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


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--lr", "-1"),
        ("--lr", "0"),
        ("--lr", "nan"),
        ("--lr", "fast"),
        ("--momentum", "1.5"),
        ("--momentum", "1"),
        ("--steps", "0"),
        ("--steps", "2.5"),
        ("--batch-size", "-3"),
        ("--period", "0"),
        ("--n", "0"),
        ("--epsilon", "0"),
        ("--rho", "inf"),
        ("--sigma2", "lots"),
        ("--weights", "0.5;0.5"),
        ("--lr-of", "mgd"),
        ("--lr-of", "mdg=0.1"),
        ("--lr-of", "mgd=-1"),
        ("--sigma2-of", "mgd=auto"),
        ("--seed", "-1"),
        ("--checkpoint-every", "0"),
    ],
)
def test_bad_values_name_the_option(place, option, value):
    result = call("run", "tiny", f"{option}={value}", code=2)
    assert f"'{option}'" in result.stderr
    assert not (place / "runs").exists()


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("--steps", "x", "steps must be a positive integer, found 'x'"),
        ("--steps", "0", "steps must be a positive integer, found 0"),
        ("--steps", "1" + 12 * "0" + "1", "steps must be at most 1e+12, found 1"),
        ("--momentum", "x", "momentum must be a finite number, found 'x'"),
        ("--c-gamma", "0", "c_gamma must be a finite number above 0, found 0"),
        ("--lr", "fast", "lr must be a finite number above 0, or 'auto', found 'fast'"),
        ("--lr-of", "mgd=-1", "lr_of['mgd'] must be a finite number above 0, or 'auto', found -1"),
        ("--lr-of", "mgd", "must read method=rate,method=rate, found 'mgd'"),
    ],
)
def test_bad_values_are_shown_beside_what_is_wanted(option, value, said):
    assert said in call("run", "tiny", f"{option}={value}", code=2).stderr


def test_debug_shows_the_error_itself():
    result = CliRunner().invoke(cli.app, ["run", "tyni", "--debug"])
    assert isinstance(result.exception, stimulus_moo.InvalidOption)


def test_a_directory_that_cannot_be_made_is_one_line(place):
    (place / "file").write_text("")
    result = call("run", "tiny", "--out", "file/x", code=2)
    assert result.stderr.startswith("error: ")
    assert "file" in result.stderr


def test_an_occupied_directory_is_refused_and_resume_is_named():
    call("run", "tiny", "--quick")
    assert "add --resume to continue it" in call("run", "tiny", "--quick", code=2).stderr
    assert "complete already" in call("run", "tiny", "--quick", "--resume").stderr


def test_a_diverged_run_says_so_and_exits_with_3(place):
    result = call("run", "tiny", "--method", "mgd", "--lr", "1e12", code=3)
    assert "diverged after" in result.stderr
    assert json.loads((place / "runs/tiny/mgd/seed-0/summary.json").read_text())["diverged"]


def with_a_nan(settings, seed, data):
    problem = fake_lab.build(settings, seed, data)
    problem.data[0][5] = float("nan")
    return problem


def test_steps_that_meet_nan_end_the_run_or_are_left_out_and_counted(place, monkeypatch):
    sick = dataclasses.replace(fake_lab.TINY, build=with_a_nan)
    monkeypatch.setattr(arguments, "catalogue", lambda: ({"tiny": sick}, {}))
    call("run", "tiny", "--method", "smgd", "--steps", 16, "--out", "ended", code=3)
    result = call("run", "tiny", "--method", "smgd", "--steps", 16, "--on-nonfinite", "skip", "--out", "kept")
    assert "16 steps (2 skipped)" in result.stderr  # one batch in eight holds the row
    assert json.loads((place / "kept/summary.json").read_text())["skipped"] == 2
    lines = [json.loads(line) for line in (place / "kept/metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == list(range(16))
    assert [line["losses"] for line in lines if line.get("skipped")] == [[None, None]] * 2
    (run,) = load_runs(place / "kept")
    assert len(run.records) == 14
    assert "'--on-nonfinite'" in call("run", "tiny", "--on-nonfinite", "ignore", code=2).stderr


class Rows(torch.utils.data.Dataset):
    def __init__(self, columns):
        self.columns = columns

    def __len__(self):
        return len(self.columns[0])

    def __getitem__(self, i):
        return tuple(column[i] for column in self.columns)


def one_by_one(settings, seed, data):
    problem = fake_lab.build(settings, seed, data)
    return dataclasses.replace(problem, data=Rows(problem.data))


def test_workers_do_not_change_a_run(place, monkeypatch):
    fetched = dataclasses.replace(fake_lab.TINY, build=one_by_one)
    monkeypatch.setattr(arguments, "catalogue", lambda: ({"tiny": fetched}, {}))
    for workers in (0, 2):
        call("run", "tiny", "--method", "stimulus-m+", "--steps", 12, "--workers", workers, "--out", f"w{workers}")
    assert (place / "w0/metrics.jsonl").read_bytes() == (place / "w2/metrics.jsonl").read_bytes()
    ours, theirs = (checkpoint.read(checkpoint.files(place / name)[0])["model"] for name in ("w0", "w2"))
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    assert "'--workers'" in call("run", "tiny", "--workers", "-1", code=2).stderr


def test_what_should_not_happen_is_one_line_and_exit_code_70(monkeypatch):
    broken = dataclasses.replace(fake_lab.TINY, build=lambda *_: 1 / 0)
    monkeypatch.setattr(arguments, "catalogue", lambda: ({"tiny": broken}, {}))
    said = call("run", "tiny", code=70).stderr
    assert said == "error: ZeroDivisionError: division by zero; this is a bug, --debug shows the traceback\n"


def test_compare_adds_the_baselines_and_prints_what_was_measured(place):
    result = call("compare", "tiny", "--methods", "stimulus", "--seeds", 2, "--steps", 3, "--out", "x")
    found = {(run.method, run.seed) for run in load_runs(place / "x")}
    assert found == {(method, seed) for method in ("stimulus", *BASELINES) for seed in (0, 1)}
    assert len(result.stderr.splitlines()) == 6
    for said in ("Loss, first", "Loss, second", "Stationarity", "Test error", "Samples", "Gradients", "Seconds"):
        assert said in result.stdout
    for said in ("STIMULUS", "Scalarisation, SGD", "Scalarisation, Adam", "±", "2 seeds (0, 1)", "64 samples"):
        assert said in result.stdout
    assert "Step sizes: 0.05 for stimulus, scalarisation, scalarisation-adam." in result.stdout


def test_compare_shows_only_what_it_compared(place):
    call("compare", "tiny", "--methods", "mgd", "--seeds", 2, "--steps", 2)
    result = call("compare", "tiny", "--methods", "smgd", "--seeds", 1, "--steps", 2, "--resume")
    assert "SMGD" in result.stdout
    assert " MGD " not in result.stdout
    assert "seed 0." in result.stdout


def test_quick_compares_one_seed(place):
    call("compare", "tiny", "--quick")
    assert {run.seed for run in load_runs(place / "runs")} == {0}
    assert {run.method for run in load_runs(place / "runs")} == {*fake_lab.TINY.methods, *BASELINES}


def test_a_diverging_method_does_not_end_a_comparison():
    result = call("compare", "tiny", "--seeds", 1, "--steps", 9, "--lr-of", "mgd=1e12")
    assert "diverged: 1 of 1" in result.stdout


@pytest.mark.parametrize("command", ["run", "compare"])
def test_run_and_compare_do_the_same_with_a_study(place, command):
    result = call(command, "squares")
    assert "Squares of numbers: holds" in result.stdout
    assert "9 cells" in result.stdout
    assert len(result.stderr.splitlines()) == 9
    assert json.loads((place / "runs/squares/study.json").read_text())["seeds"] == 3


def test_settings_of_a_study_are_set_by_name(place):
    call("run", "squares", "--set", "sizes=[4, 5]", "--out", "x")
    assert settings_of(place / "x")["settings"] == {"sizes": [4, 5]}


def test_tune_names_the_best_step_size_of_every_method():
    result = call("tune", "tiny", "--methods", "mgd,smgd", "--steps", 3, "--n", 16)
    assert "mgd lr=0.1: mean loss" in result.stderr
    assert "Mean training loss by step size" in result.stdout
    assert result.stdout.splitlines()[-1].startswith("--lr-of mgd=")
    assert "squares is a study" in call("tune", "squares", code=2).stderr


def test_the_table_breaks_no_number_on_a_narrow_screen(monkeypatch):
    monkeypatch.setattr(compare, "stdout", lambda: Console(width=70))
    result = call("compare", "tiny", "--seeds", 2, "--steps", 3)
    assert result.stdout.count("STIMULUS-M ") > 1
    assert "…" not in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 70
    rows = [line.split() for line in result.stdout.splitlines() if line.strip().startswith("MGD ")]
    assert any("192" in row for row in rows)


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


def test_data_list_and_check(place):
    assert "built in" in call("data", "list").stdout
    assert "built in" in call("data", "check", "digits").stdout
    assert "missing" in call("data", "check", "mnist", code=1).stdout
    assert "missing" in call("data", "check").stdout


def test_the_demo_compares_digits_and_goes_on_by_itself(place, monkeypatch):
    digits = dataclasses.replace(fake_lab.TINY, name="digits", settings=fake_lab.TINY.settings.override({"steps": 2}))
    monkeypatch.setattr(arguments, "catalogue", lambda: ({"digits": digits}, {}))
    monkeypatch.setattr("stimulus_moo.lab.report.write_report", lambda folder: folder / "report.html")
    first = call("demo")
    assert "report: runs/demo/report.html" in first.stdout
    assert "A tiny regression" in first.stdout
    assert call("demo").stderr.count("complete already") == DEMO_SEEDS * 4


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
        "see docs/get-started.md#1-install\n"
    )


def test_a_terminal_sees_loss_and_time_left():
    console = Console(file=io.StringIO(), force_terminal=True, width=120)
    with Watch(console, "All", 2) as watch:
        watch.begin("MGD, seed 0", 40)
        watch.show(10, [0.5, 0.25])
        console.print(watch._bars)
    said = console.file.getvalue()
    assert "loss 0.5 0.25" in said
    assert "10/40" in said
    assert "left" in said


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("run ti", ["tiny"]),
        ("compare squ", ["squares"]),
        ("tune ti", ["tiny"]),
        ("run tiny --method stimulus-", ["stimulus-m", "stimulus-m+"]),
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
