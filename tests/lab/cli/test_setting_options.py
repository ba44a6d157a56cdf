import dataclasses
import json

import pytest
import typer

from stimulus_moo import METHODS
from stimulus_moo.lab.cli import arguments
from stimulus_moo.lab.cli.setting_options import OPTIONS, experiment_settings
from stimulus_moo.lab.experiment import ExperimentSettings
from stimulus_moo.lab.experiments import EXPERIMENTS
from stimulus_moo.lab.report.groups import step_size
from stimulus_moo.lab.runs.reading import load_runs

from .. import fake_lab
from .conftest import call, settings_of


def test_every_setting_is_an_option():
    assert set(OPTIONS) == {field.name for field in dataclasses.fields(ExperimentSettings)}
    said = call("run", "--help").stdout
    for name in OPTIONS:
        assert f"--{name.replace('_', '-')}" in said


def test_every_setting_reaches_the_run(place):
    given = {
        "lr": 0.01,
        "momentum": 0.25,
        "batch_size": 4,
        "period": 5,
        "guard": False,
        "steps": 2,
        "gradients": 999,
        "passes": 5000,
        "seconds": 60.0,
        "decay": 0.5,
        "reweigh": "anchor",
        "weighting": "balanced",
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


def test_a_budget_of_passes_replaces_the_limits_of_the_experiment():
    own = fake_lab.TINY
    changed = experiment_settings(own, False, {"passes": 5}, ())
    assert (changed.steps, changed.gradients, changed.passes) == (None, None, 5)
    both = experiment_settings(own, False, {"seconds": 2.5, "steps": 7}, ())
    assert (both.steps, both.seconds) == (7, 2.5)
    assert experiment_settings(own, False, {"reweigh": 2}, ()).steps == own.settings.steps


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("passes", "0", "passes must be a positive integer, found 0"),
        ("seconds", "0", "seconds must be a finite number above 0, found 0"),
        ("seconds", "soon", "seconds must be a finite number, found 'soon'"),
        ("reweigh", "0", "reweigh must be a positive integer, found 0"),
        ("reweigh", "anchors", "reweigh must be a positive integer, 'anchor' or 'auto', found 'anchors'"),
    ],
)
def test_bad_budgets_are_named(option, value, message):
    with pytest.raises(typer.BadParameter, match=message):
        OPTIONS[option].check(option, value)


def test_a_comparison_at_equal_passes_charges_a_scalarisation_one(place):
    said = call("compare", "tiny", "--methods", "smgd", "--seeds", 1, "--passes", 480, "--reweigh", 5, "--out", "x")
    found = {run.method: run.summary for run in load_runs(place / "x")}
    assert {method: summary["stopped"] for method, summary in found.items()} == dict.fromkeys(found, "passes")
    assert {method: summary["steps"] for method, summary in found.items()} == {
        "smgd": 50,  # of 8 samples, and of 16 passes at every fifth
        "scalarisation": 60,
        "scalarisation-adam": 60,
    }
    assert "Passes" in said.stdout


def with_rates(monkeypatch, **rates):
    settings = fake_lab.TINY.settings.override({"lr_of": rates})
    tiny = dataclasses.replace(fake_lab.TINY, settings=settings)
    monkeypatch.setattr(arguments, "catalogue", lambda: ({"tiny": tiny}, {}))


def rates_of(folder):
    return {run.method: step_size(run) for run in load_runs(folder)}


def test_a_comparison_with_lr_auto_is_for_every_method(place, monkeypatch):
    with_rates(monkeypatch, **{"mgd": 0.1, "scalarisation-adam": 0.02})
    options = ["compare", "tiny", "--methods", "mgd,stimulus", "--lr", "auto", "--seeds", 1, "--steps", 2]
    call(*options, "--out", "x")
    found = rates_of(place / "x")
    assert found == dict.fromkeys(("mgd", "stimulus", "scalarisation", "scalarisation-adam"), "auto")
    call(*options, "--lr-of", "stimulus=0.3", "--out", "y")
    assert rates_of(place / "y") == {**found, "stimulus": 0.3}


def test_every_experiment_can_be_compared_with_lr_auto():
    for experiment in EXPERIMENTS.values():
        settings = experiment_settings(experiment, True, {"lr": "auto"}, ())
        assert {settings.for_method(method)["lr"] for method in METHODS} == {"auto"}


def test_auto_chooses_its_rate_unless_one_is_given_by_name():
    for experiment in EXPERIMENTS.values():
        assert experiment_settings(experiment, True, {"lr": 0.01}, ()).for_method("auto")["lr"] == "auto"
        named = experiment_settings(experiment, True, {"lr_of": {"auto": 0.01}}, ())
        assert named.for_method("auto")["lr"] == 0.01
        assert named.for_method("auto")["reweigh"] == "auto"


def test_the_rate_of_a_single_method_may_be_auto(place):
    call("run", "tiny", "--method", "stimulus", "--lr-of", "stimulus=auto", "--steps", 2, "--out", "x")
    assert rates_of(place / "x") == {"stimulus": "auto"}


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


def test_settings_of_a_study_are_set_by_name(place):
    call("run", "squares", "--set", "sizes=[4, 5]", "--out", "x")
    assert settings_of(place / "x")["settings"] == {"sizes": [4, 5]}
