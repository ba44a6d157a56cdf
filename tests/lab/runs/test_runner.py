import dataclasses
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from stimulus_moo import METHODS, InvalidOption, StateMismatch, StimulusWarning
from stimulus_moo.__main__ import main
from stimulus_moo.lab import cli
from stimulus_moo.lab.runs.directory import run_folder
from stimulus_moo.lab.runs.interrupts import Interrupted
from stimulus_moo.lab.runs.reading import load_runs
from stimulus_moo.lab.runs.runner import compare, run_one, run_study
from stimulus_moo.lab.runs.storage import RunError
from stimulus_moo.training import checkpoint
from tests.distributed.launch import quick_starter

from ..fake_lab import SLEEP, SQUARES, TINY, build, catalogue, metrics

ROOT = Path(__file__).parents[3]

#: runs that fail have other losses than those that resume them
pytestmark = pytest.mark.filterwarnings("ignore:the checkpoint was made with losses")


class Crash(Exception):
    """Stands for a process that ends without a chance to tidy up."""


def failing(at, action):
    """The tiny experiment, whose losses do something when they are called for the ``at``-th time."""
    calls = 0

    def built(settings, seed, data):
        problem = build(settings, seed, data)

        def losses(model, batch):
            nonlocal calls
            calls += 1
            if calls == at:
                action()
            return problem.losses(model, batch)

        return dataclasses.replace(problem, losses=losses)

    return dataclasses.replace(TINY, build=built)


def crash():
    raise Crash


def parameters(folder):
    return newest(folder)["model"]


def newest(folder):
    return checkpoint.read(checkpoint.files(folder)[0])


def assert_same_run(folder, other):
    assert metrics(folder) == metrics(other)
    ours, theirs = parameters(folder), parameters(other)
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    differ = {"seconds"}
    first, second = (json.loads((path / "summary.json").read_text()) for path in (folder, other))
    assert {k: v for k, v in first.items() if k not in differ} == {k: v for k, v in second.items() if k not in differ}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Uninterrupted runs, by method, made when first asked for."""
    root = tmp_path_factory.mktemp("whole")

    def folder(method):
        if not (root / method).exists():
            run_one(TINY, method, TINY.settings, 0, root / method)
        return root / method

    return folder


@pytest.mark.parametrize("method", ["stimulus-m+", "moco+", "page-moo", "scalarisation-adam"])
def test_a_crashed_and_resumed_run_equals_an_uninterrupted_one(tmp_path, whole, method):
    with pytest.raises(Crash):
        run_one(failing(20, crash), method, TINY.settings, 0, tmp_path, checkpoint_every=3)
    assert 0 < len(metrics(tmp_path).splitlines()) < 40
    with pytest.raises(Crash):
        run_one(failing(9, crash), method, TINY.settings, 0, tmp_path, resume=True, checkpoint_every=3)
    run_one(TINY, method, TINY.settings, 0, tmp_path, resume=True)
    assert_same_run(tmp_path, whole(method))
    assert len(json.loads((tmp_path / "settings.json").read_text())["resumed"]) == 2


def test_lines_after_the_checkpoint_are_cut_and_a_broken_last_line_too(tmp_path, whole):
    with pytest.raises(Crash):
        run_one(failing(60, crash), "stimulus", TINY.settings, 0, tmp_path, checkpoint_every=4)
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 27, "sam')
    leftover = tmp_path / f".stimulus-moo-{'0' * 32}.tmp"
    leftover.write_bytes(b"PK")
    run_one(TINY, "stimulus", TINY.settings, 0, tmp_path, resume=True, checkpoint_every=4)
    assert_same_run(tmp_path, whole("stimulus"))
    assert not leftover.exists()


def test_a_crash_before_the_first_checkpoint_starts_again(tmp_path, whole):
    with pytest.raises(Crash):
        run_one(failing(12, crash), "smgd", TINY.settings, 0, tmp_path)
    assert not checkpoint.files(tmp_path) or metrics(tmp_path)
    run_one(TINY, "smgd", TINY.settings, 0, tmp_path, resume=True)
    assert_same_run(tmp_path, whole("smgd"))


def test_damaged_lines_before_the_checkpoint_are_reported_and_restored(tmp_path, whole):
    with pytest.raises(Crash):
        run_one(failing(60, crash), "stimulus", TINY.settings, 0, tmp_path, checkpoint_every=4)
    lines = metrics(tmp_path).splitlines()
    lines[1] = "garbage"
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    with pytest.warns(StimulusWarning, match=r"1 of the first \d+ lines are missing or damaged .*line 2: damaged"):
        run_one(TINY, "stimulus", TINY.settings, 0, tmp_path, resume=True)
    assert_same_run(tmp_path, whole("stimulus"))


def test_a_crash_after_the_last_step_is_completed(tmp_path, whole):
    broken = dataclasses.replace(TINY, build=lambda *a: dataclasses.replace(build(*a), test=lambda model: crash()))
    with pytest.raises(Crash):
        run_one(broken, "mgd", TINY.settings, 0, tmp_path)
    (tmp_path / "metrics.jsonl").unlink()
    assert run_one(TINY, "mgd", TINY.settings, 0, tmp_path, resume=True)["steps"] == 40
    assert_same_run(tmp_path, whole("mgd"))


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_finishes_the_step_saves_and_can_be_resumed(tmp_path, whole, number, code):
    before = signal.getsignal(number)
    experiment = failing(50, lambda: os.kill(os.getpid(), number))
    with pytest.raises(Interrupted) as stopped:
        run_one(experiment, "stimulus", TINY.settings, 0, tmp_path, checkpoint_every=1000)
    assert stopped.value.code == code
    assert signal.getsignal(number) is before
    done = newest(tmp_path)["step"]
    assert len(metrics(tmp_path).splitlines()) == done
    assert not (tmp_path / "summary.json").exists()
    run_one(TINY, "stimulus", TINY.settings, 0, tmp_path, resume=True)
    assert_same_run(tmp_path, whole("stimulus"))


def test_the_second_signal_stops_at_once(tmp_path):
    def twice():
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(Interrupted):
        run_one(failing(50, twice), "stimulus", TINY.settings, 0, tmp_path, checkpoint_every=1000)
    assert not checkpoint.files(tmp_path)


def test_a_complete_run_is_left_as_it_is(tmp_path):
    settings = TINY.settings.override({"steps": 5})
    first = run_one(TINY, "mgd", settings, 0, tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert run_one(failing(1, crash), "mgd", settings, 0, tmp_path, resume=True) == first
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_directory_that_holds_a_run_is_refused_without_resume(tmp_path):
    settings = TINY.settings.override({"steps": 2})
    run_one(TINY, "mgd", settings, 0, tmp_path)
    with pytest.raises(RunError, match="holds a run already; add --resume"):
        run_one(TINY, "mgd", settings, 0, tmp_path)


@pytest.mark.parametrize(
    ("method", "seed", "changes", "named"),
    [
        ("smgd", 0, {}, "method = 'mgd', now it is 'smgd'"),
        ("mgd", 1, {}, "seed = 0, now it is 1"),
        ("mgd", 0, {"lr": 0.1}, "lr = 0.05, now it is 0.1"),
        ("mgd", 0, {"lr_of": {}}, r"lr_of\['moco'\] = 0.01, now it is None"),
        ("mgd", 0, {"steps": 3}, "steps = 2, now it is 3"),
    ],
)
def test_resuming_with_other_settings_is_refused(tmp_path, method, seed, changes, named):
    settings = TINY.settings.override({"steps": 2})
    run_one(TINY, "mgd", settings, 0, tmp_path)
    with pytest.raises(RunError, match=f"was started with {named}"):
        run_one(TINY, method, settings.override(changes), seed, tmp_path, resume=True)


def test_resuming_on_other_data_is_refused(tmp_path):
    with pytest.raises(Crash):
        run_one(failing(20, crash), "smgd", TINY.settings, 0, tmp_path)
    other = dataclasses.replace(TINY, build=lambda *a: dataclasses.replace(build(*a), synthetic=False))
    with pytest.raises(RunError, match="synthetic = True, now it is False"):
        run_one(other, "smgd", TINY.settings, 0, tmp_path, resume=True)


@pytest.mark.parametrize("content", ["{", "[]"])
def test_damaged_settings_are_refused_by_name(tmp_path, content):
    (tmp_path / "settings.json").write_text(content)
    with pytest.raises(RunError, match=r"settings\.json is damaged .*remove its directory"):
        run_one(TINY, "mgd", TINY.settings, 0, tmp_path, resume=True)


def test_metrics_without_settings_are_refused(tmp_path):
    (tmp_path / "metrics.jsonl").write_text("")
    with pytest.raises(RunError, match=r"holds metrics\.jsonl without settings\.json"):
        run_one(TINY, "mgd", TINY.settings, 0, tmp_path, resume=True)


def test_a_damaged_checkpoint_gives_way_to_the_one_before_it(tmp_path, whole):
    with pytest.raises(Crash):
        run_one(failing(60, crash), "stimulus", TINY.settings, 0, tmp_path, checkpoint_every=4)
    last, before = checkpoint.files(tmp_path)
    last.write_bytes(last.read_bytes()[:-1000])
    with pytest.warns(StimulusWarning, match=rf"{last.name} is damaged .* continuing from {before.name}"):
        run_one(TINY, "stimulus", TINY.settings, 0, tmp_path, resume=True)
    assert_same_run(tmp_path, whole("stimulus"))


def test_damaged_checkpoints_are_refused_and_nothing_is_touched(tmp_path):
    with pytest.raises(Crash):
        run_one(failing(60, crash), "stimulus", TINY.settings, 0, tmp_path, checkpoint_every=4)
    for path in checkpoint.files(tmp_path):
        path.write_bytes(b"\x00" * 100)
    before = metrics(tmp_path)
    with pytest.raises(StateMismatch, match=r"checkpoint-\d+\.pt is damaged .* remove them to start again"):
        run_one(TINY, "stimulus", TINY.settings, 0, tmp_path, resume=True)
    assert metrics(tmp_path) == before


def test_an_option_that_cannot_work_leaves_nothing_behind(tmp_path):
    with pytest.raises(InvalidOption, match="batch_size must be at most"):
        run_one(TINY, "smgd", TINY.settings.override({"batch_size": 65}), 0, tmp_path / "a" / "b")
    assert list(tmp_path.iterdir()) == []


def test_the_global_random_state_is_the_caller_s(tmp_path):
    before = torch.get_rng_state()
    run_one(TINY, "smgd", TINY.settings.override({"steps": 2}), 0, tmp_path)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.fixture
def clock(monkeypatch):
    """Let every step take exactly one second."""
    ticks = itertools.count()
    monkeypatch.setattr("stimulus_moo.training.run.perf_counter", lambda: float(next(ticks)))


def test_seconds_of_steps_add_up_over_resumptions(tmp_path, clock):
    with pytest.raises(Crash):
        run_one(failing(60, crash), "stimulus", TINY.settings, 0, tmp_path, checkpoint_every=4)
    assert run_one(TINY, "stimulus", TINY.settings, 0, tmp_path, resume=True)["seconds"] == 40.0
    (run,) = load_runs(tmp_path)
    assert [record["seconds"] for record in run.records] == [float(step) for step in range(1, 41)]


def test_a_run_ends_at_its_budget_of_seconds(tmp_path, clock):
    summary = run_one(TINY, "smgd", TINY.settings.override({"seconds": 7.5}), 0, tmp_path)
    assert (summary["stopped"], summary["steps"], summary["seconds"]) == ("seconds", 8, 8.0)


@pytest.mark.parametrize(
    ("method", "reweigh", "steps", "passes"),
    [
        ("smgd", 1, 19, 19 * 16),
        ("smgd", 5, 31, 31 * 8 + 7 * 8),  # steps 0, 5, ..., 30 solve
        ("scalarisation", 5, 38, 38 * 8),
        ("mgd", "anchor", 3, 3 * 128),
    ],
)
def test_a_budget_of_passes_charges_one_for_a_weighted_loss(tmp_path, method, reweigh, steps, passes):
    summary = run_one(TINY, method, TINY.settings.override({"passes": 300, "reweigh": reweigh}), 0, tmp_path)
    assert (summary["stopped"], summary["steps"], summary["passes"]) == ("passes", steps, passes)
    (run,) = load_runs(tmp_path)
    assert (run.settings["passes"], run.settings["reweigh"]) == (300, reweigh)
    assert run.records[-1]["passes"] == passes


def test_a_comparison_refuses_a_reweigh_that_a_method_does_not_support_before_it_starts(tmp_path):
    settings = TINY.settings.override({"reweigh": 5})
    with pytest.raises(InvalidOption, match="reweigh must be 1, 'anchor' or 'auto' with Recursive"):
        compare(TINY, ["smgd", "stimulus"], settings, [0], tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_complete_run_of_an_older_version_is_read_and_not_repeated(tmp_path):
    run_one(TINY, "smgd", TINY.settings.override({"steps": 4, "evaluate_every": 2}), 0, tmp_path)
    for name in ("settings.json", "summary.json"):
        kept = json.loads((tmp_path / name).read_text())
        older = {key: value for key, value in kept.items() if key not in ("passes", "seconds", "reweigh")}
        (tmp_path / name).write_text(json.dumps(older))
    lines = [json.loads(line) for line in metrics(tmp_path).splitlines()]
    older = [json.dumps({key: value for key, value in line.items() if key != "passes"}) + "\n" for line in lines]
    (tmp_path / "metrics.jsonl").write_text("".join(older))
    (run,) = load_runs(tmp_path)
    assert (run.settings["reweigh"], len(run.records), "passes" in run.records[0]) == (1, 4, False)
    settings = TINY.settings.override({"steps": 4, "evaluate_every": 2})
    assert run_one(TINY, "smgd", settings, 0, tmp_path, resume=True)["steps"] == 4
    with pytest.raises(RunError, match="was started with reweigh = 1, now it is 2"):
        run_one(TINY, "smgd", settings.override({"reweigh": 2}), 0, tmp_path, resume=True)


def test_a_diverging_method_does_not_end_a_comparison(tmp_path):
    settings = TINY.settings.override({"lr_of": {"mgd": 1e12}, "steps": 20})
    diverged, sound = compare(TINY, ["mgd", "smgd"], settings, [0], tmp_path)
    assert diverged["diverged"]
    assert diverged["stopped"] == "diverged"
    assert "objective" in diverged["error"]
    assert 0 < diverged["steps"] < 20
    assert diverged["steps"] == len(metrics(run_folder(tmp_path, "tiny", "mgd", 0)).splitlines())
    assert not sound["diverged"]
    assert compare(TINY, ["mgd", "smgd"], settings, [0], tmp_path, resume=True) == [diverged, sound]


def test_a_comparison_is_refused_before_it_starts_if_one_run_exists(tmp_path):
    settings = TINY.settings.override({"steps": 2})
    run_one(TINY, "smgd", settings, 1, run_folder(tmp_path, "tiny", "smgd", 1))
    with pytest.raises(RunError, match="holds a run already"):
        compare(TINY, ["mgd", "smgd"], settings, [0, 1], tmp_path)
    assert len(load_runs(tmp_path)) == 1


def test_a_resumed_comparison_runs_only_what_is_missing(tmp_path):
    settings = TINY.settings.override({"steps": 2})
    run_one(TINY, "smgd", settings, 1, run_folder(tmp_path, "tiny", "smgd", 1))
    before = (run_folder(tmp_path, "tiny", "smgd", 1) / "summary.json").stat().st_mtime_ns
    summaries = compare(TINY, ["mgd", "smgd"], settings, [0, 1], tmp_path, resume=True)
    assert [(s["seed"], s["method"]) for s in summaries] == [(0, "mgd"), (0, "smgd"), (1, "mgd"), (1, "smgd")]
    assert (run_folder(tmp_path, "tiny", "smgd", 1) / "summary.json").stat().st_mtime_ns == before


@pytest.mark.parametrize("method", METHODS)
def test_every_method_runs(tmp_path, method):
    summary = run_one(TINY, method, TINY.settings.override({"steps": None, "gradients": 300}), 0, tmp_path)
    assert summary["gradients"] >= 300
    assert summary["stopped"] == "gradients"


def test_a_study_computes_no_cell_twice(tmp_path):
    calls = []

    def stopping(settings, seeds, cell):
        def compute(n):
            calls.append(n)
            if len(calls) == 3:
                raise KeyboardInterrupt
            return float("nan") if n == 1 else n

        return {"values": [cell({"n": n}, lambda n=n: compute(n)) for n in settings["sizes"]], "verdict": "holds"}

    study = dataclasses.replace(SQUARES, run=stopping)
    with pytest.raises(KeyboardInterrupt):
        run_study(study, study.settings, 1, tmp_path)
    assert not (tmp_path / "study.json").exists()
    with (tmp_path / "cells.jsonl").open("a") as file:
        file.write('{"key": {"n": 3}, "val')
    with pytest.warns(StimulusWarning, match=r"cells\.jsonl, line 3: cut off .* computed again"):
        report = run_study(study, study.settings, 1, tmp_path, resume=True)
    assert calls == [1, 2, 3, 3]
    assert report["values"] == [None, 2, 3]
    assert run_study(study, study.settings, 1, tmp_path, resume=True) == report


def test_a_study_with_other_settings_is_refused(tmp_path):
    run_study(SQUARES, SQUARES.settings, 1, tmp_path)
    with pytest.raises(RunError, match="holds a run already"):
        run_study(SQUARES, SQUARES.settings, 1, tmp_path)
    with pytest.raises(RunError, match=r"seeds = 1, now it is 2"):
        run_study(SQUARES, SQUARES.settings, 2, tmp_path, resume=True)
    with pytest.raises(RunError, match=r"settings\['sizes'\] = \[1, 2, 3\], now it is \[1\]"):
        run_study(SQUARES, {"sizes": [1]}, 1, tmp_path, resume=True)


def start(*arguments, sleep):
    environment = {**os.environ, SLEEP: str(sleep), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.lab.fake_lab", *map(str, arguments)]
    return subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True)


def wait_for_lines(folder, count):
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if (folder / "metrics.jsonl").exists() and len(metrics(folder).splitlines()) >= count:
            return
        time.sleep(0.005)
    pytest.fail(f"no {count} lines in a minute")


def command_line(sleep, *words):
    """Run ``stimulus-moo`` with the tiny experiment, in a process of its own."""
    os.environ[SLEEP] = str(sleep)
    cli.arguments.catalogue = catalogue
    sys.argv = ["stimulus-moo", *words]
    main()


def test_a_killed_process_loses_nothing(tmp_path, whole):
    arguments = ("run", "tiny", "--method", "stimulus-m+", "--out", tmp_path, "--checkpoint-every", 3, "--resume")
    process = quick_starter().Process(target=command_line, args=(0.01, *map(str, arguments)))
    process.start()
    wait_for_lines(tmp_path, 10)
    process.kill()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert 10 <= len(metrics(tmp_path).splitlines()) < 40
    process = quick_starter().Process(target=command_line, args=(0, *map(str, arguments)))
    process.start()
    process.join()
    assert process.exitcode == 0
    assert_same_run(tmp_path, whole("stimulus-m+"))


def test_a_second_process_is_refused_and_ctrl_c_says_how_to_resume(tmp_path, whole):
    process = start("run", "tiny", "--method=mgd", "--out", tmp_path / "a b", "--steps", 40, sleep=0.05)
    wait_for_lines(tmp_path / "a b", 3)
    with pytest.raises(RunError, match="in use by another process"):
        run_one(TINY, "mgd", TINY.settings, 0, tmp_path / "a b", resume=True)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate()
    assert process.returncode == 130
    assert "Traceback" not in said
    assert "all results so far are saved" in said
    assert f"stimulus-moo run tiny --method=mgd --out '{tmp_path}/a b' --steps 40 --resume" in said
    run_one(TINY, "mgd", TINY.settings, 0, tmp_path / "a b", resume=True)
    assert_same_run(tmp_path / "a b", whole("mgd"))


def test_a_study_with_changed_settings_says_that_its_verdict_is_not_conclusive(tmp_path):
    own = run_study(SQUARES, SQUARES.settings, 1, tmp_path / "own")
    changed = run_study(SQUARES, {**SQUARES.settings, "sizes": [2]}, 1, tmp_path / "changed")
    assert not any("not conclusive" in finding for finding in own["findings"])
    assert "(sizes): the verdict is not conclusive" in changed["findings"][0]
    assert changed["verdict"] == "not conclusive" != own["verdict"]
