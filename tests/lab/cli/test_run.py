import dataclasses
import json

import pytest
import torch

from stimulus_moo import fit
from stimulus_moo.lab.cli import arguments
from stimulus_moo.lab.runs.reading import load_runs
from stimulus_moo.training import checkpoint

from .. import fake_lab
from .conftest import call, settings_of


def test_run_writes_the_run_directory_itself(place):
    result = call("run", "tiny", "--method", "mgd", "--seed", 2, "--steps", 3, "--out", "here")
    assert (settings_of(place / "here")["seed"], settings_of(place / "here")["steps"]) == (2, 3)
    assert "tiny, mgd, seed 2: 3 steps, 192 samples, 192 gradients, 384 passes" in result.stderr
    assert "Training set: 64 samples; seed 2." in result.stdout
    assert "made up (synthetic: made by a program)" in result.stdout
    assert "kept in here" in result.stdout


def test_run_without_out_uses_runs(place):
    call("run", "tiny", "--quick")
    assert settings_of(place / "runs/tiny/auto/seed-0")["steps"] == 6


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
    assert fake_lab.metrics(place / "w0") == fake_lab.metrics(place / "w2")
    ours, theirs = (checkpoint.read(checkpoint.files(place / name)[0])["model"] for name in ("w0", "w2"))
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    assert "'--workers'" in call("run", "tiny", "--workers", "-1", code=2).stderr


@pytest.mark.parametrize("command", ["run", "compare"])
def test_run_and_compare_do_the_same_with_a_study(place, command):
    result = call(command, "squares")
    assert "Squares of numbers: holds" in result.stdout
    assert "9 cells" in result.stdout
    assert len(result.stderr.splitlines()) == 9
    assert json.loads((place / "runs/squares/study.json").read_text())["seeds"] == 3


@pytest.mark.filterwarnings("ignore")  # torchjd's solvers warn on their own behalf
@pytest.mark.parametrize("name", ["UPGrad", "equal"])
def test_a_weighting_by_name(place, name):
    if name == "UPGrad":
        pytest.importorskip("torchjd.aggregation")
    result = call("run", "tiny", "--method", "smgd", "--weighting", name, "--steps", 5, "--out", "x")
    assert f"SMGD, {name.lower()} weights" in result.stdout
    assert settings_of(place / "x")["weighting"] == name.lower()
    inputs, targets = (problem := fake_lab.build(fake_lab.TINY.settings, 0, None)).data
    expected = fit(
        problem.model, problem.losses, (inputs, targets), method="smgd", weighting=name.lower(), lr=0.05, steps=5,
        batch_size=8, seed=0, guard=True,
    )  # fmt: skip
    call("run", "tiny", "--method", "smgd", "--steps", 5, "--out", "own")
    found, own = (torch.tensor([r["weights"] for r in load_runs(place / out)[0].records]) for out in ("x", "own"))
    assert torch.allclose(found, torch.tensor(expected.history["weights"]))
    assert not torch.allclose(found, own)


def test_an_unknown_weighting_is_told_with_the_closest():
    said = call("run", "tiny", "--weighting", "balansed", code=2).stderr
    assert "there is no weighting 'balansed'; did you mean 'balanced'?" in " ".join(said.replace("│", " ").split())


def test_a_run_from_before_the_setting_existed_is_resumed(place):
    call("run", "tiny", "--method", "smgd", "--quick", "--out", "x")
    settings = settings_of(place / "x")
    del settings["weighting"]
    (place / "x/settings.json").write_text(json.dumps(settings))
    assert "complete already" in call("run", "tiny", "--method", "smgd", "--quick", "--out", "x", "--resume").stderr
