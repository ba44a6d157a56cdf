from rich.console import Console

from stimulus_moo.lab.cli import compare
from stimulus_moo.lab.runs.reading import load_runs
from stimulus_moo.lab.runs.runner import BASELINES

from .. import fake_lab
from .conftest import call


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


def test_the_table_breaks_no_number_on_a_narrow_screen(monkeypatch):
    monkeypatch.setattr(compare, "stdout", lambda: Console(width=70))
    result = call("compare", "tiny", "--seeds", 2, "--steps", 3)
    assert result.stdout.count("STIMULUS-M ") > 1
    assert "…" not in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 70
    rows = [line.split() for line in result.stdout.splitlines() if line.strip().startswith("MGD ")]
    assert any("192" in row for row in rows)
