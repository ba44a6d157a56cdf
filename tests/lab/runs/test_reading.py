import json

import pytest
import torch

import stimulus_moo
from stimulus_moo import InvalidOption, StimulusWarning
from stimulus_moo.lab.runs.directory import run_folder
from stimulus_moo.lab.runs.reading import load_runs, load_studies
from stimulus_moo.lab.runs.runner import run_one, run_study

from ..fake_lab import SQUARES, TINY

QUICK = TINY.settings.override(TINY.quick)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "one"
    run_one(TINY, "stimulus", QUICK, 3, folder)
    return folder


@pytest.fixture
def copied(finished, tmp_path):
    """A run directory that a test may damage."""
    for path in finished.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    return tmp_path


def test_a_run_directory_holds_what_the_design_says(finished):
    names = {path.name.removesuffix(".sha256") for path in finished.iterdir()}
    assert names - {".stimulus-moo.lock"} == {
        "settings.json",
        "metrics.jsonl",
        "summary.json",
        "checkpoint-000000005.pt",
        "checkpoint-000000006.pt",
    }
    settings = json.loads((finished / "settings.json").read_text())
    assert (settings["experiment"], settings["method"], settings["seed"]) == ("tiny", "stimulus", 3)
    assert (settings["lr"], settings["steps"], settings["lr_of"]) == (0.05, 6, {"moco": 0.01})
    assert settings["versions"]["torch"] == torch.__version__
    assert settings["versions"]["stimulus_moo"] == stimulus_moo.__version__
    assert (settings["tasks"], settings["synthetic"], settings["data"]) == (["first", "second"], True, "made up")
    assert (settings["n_train"], settings["threads"]) == (64, torch.get_num_threads())


def test_metrics_have_one_line_per_step_and_the_last_is_the_summary(finished):
    (run,) = load_runs(finished)
    assert [record["step"] for record in run.records] == list(range(6))
    assert {"samples", "gradients", "losses", "weights", "sq_norm", "anchored"} <= run.records[0].keys()
    assert "stationarity" not in run.records[0]
    last = run.records[-1]
    assert {key: run.summary[key] for key in last} == last
    assert run.summary["test"] == {"error": [0.25, 0.75]}
    assert (run.summary["stopped"], run.summary["diverged"], run.summary["steps"]) == ("steps", False, 6)
    assert run.complete


def test_runs_are_sorted_by_the_table_of_methods_and_seed(tmp_path):
    for method, seed in (("stimulus", 1), ("stimulus", 0), ("mgd", 0)):
        run_one(TINY, method, QUICK, seed, run_folder(tmp_path, "tiny", method, seed))
    assert [(run.method, run.seed) for run in load_runs(tmp_path)] == [("mgd", 0), ("stimulus", 0), ("stimulus", 1)]


def test_studies_and_runs_are_told_apart(tmp_path, finished):
    run_study(SQUARES, SQUARES.settings, 2, tmp_path / "squares")
    assert load_runs(tmp_path) == []
    (study,) = load_studies(tmp_path)
    assert (study["name"], study["verdict"], study["seeds"]) == ("squares", "holds", 2)
    assert load_studies(finished) == []


def test_a_damaged_line_is_named_and_left_out(copied):
    lines = (copied / "metrics.jsonl").read_text().splitlines()
    lines[2] = lines[2][:20]
    (copied / "metrics.jsonl").write_text("\n".join(lines) + '\n{"step": 6, "samp')
    with pytest.warns(StimulusWarning) as caught:
        (run,) = load_runs(copied)
    said = [str(warning.message) for warning in caught]
    assert len(said) == 2
    assert f"{copied / 'metrics.jsonl'}, line 3: damaged" in said[0]
    assert "line 7: cut off after 17 bytes" in said[1]
    assert [record["step"] for record in run.records] == [0, 1, 3, 4, 5]


def test_lines_out_of_order_or_without_counters_are_named_and_left_out(copied):
    lines = (copied / "metrics.jsonl").read_text().splitlines()
    (copied / "metrics.jsonl").write_text("\n".join([*lines[:2], lines[1], '{"step": "x"}', "[1]"]) + "\n")
    with pytest.warns(
        StimulusWarning, match="step 1 comes after step 1|step must be 0 or a positive integer|found list"
    ):
        (run,) = load_runs(copied)
    assert [record["step"] for record in run.records] == [0, 1]


@pytest.mark.parametrize("content", ["{", "[]", "", "\x00\x01", "[" * 100_000])
def test_damaged_settings_are_named_and_the_run_left_out(copied, content):
    (copied / "settings.json").write_text(content)
    with pytest.warns(StimulusWarning, match=r"settings\.json is damaged"):
        assert load_runs(copied) == []


def test_foreign_settings_are_named_and_left_out(copied):
    (copied / "settings.json").write_text("{}")
    with pytest.warns(StimulusWarning, match=r"settings\.json does not hold the settings of a run"):
        assert load_runs(copied) == []


def test_a_damaged_summary_makes_a_run_incomplete(copied):
    (copied / "summary.json").write_text("{")
    with pytest.warns(StimulusWarning, match=r"summary\.json is damaged"):
        (run,) = load_runs(copied)
    assert not run.complete
    assert len(run.records) == 6


def test_a_damaged_study_is_named_and_left_out(tmp_path):
    (tmp_path / "study.json").write_text("nonsense")
    with pytest.warns(StimulusWarning, match=r"study\.json is damaged"):
        assert load_studies(tmp_path) == []


@pytest.mark.parametrize("load", [load_runs, load_studies])
def test_a_directory_that_is_not_there_is_refused(tmp_path, load):
    with pytest.raises(InvalidOption, match="is not a directory"):
        load(tmp_path / "nowhere")
