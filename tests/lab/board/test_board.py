"""The board at toy size: tuning on validation data, equal budgets, resuming, and the three files."""

import json
import math

import pytest
import torch
from rich.console import Console

from stimulus_moo import InvalidOption, delta_m
from stimulus_moo.lab.board import cell as cells
from stimulus_moo.lab.board.board import Board, passes_within, score
from stimulus_moo.lab.board.cell import run_cell
from stimulus_moo.lab.board.make import make_board
from stimulus_moo.lab.board.meter import planned
from stimulus_moo.lab.board.problem import Metric
from stimulus_moo.lab.board.problems import PROBLEMS, find_problem
from stimulus_moo.lab.board.rivals import RIVALS
from stimulus_moo.lab.board.store import Store
from stimulus_moo.lab.board.summary import overall
from stimulus_moo.lab.data import DataError

from . import toy


def store(folder, run=run_cell):
    return Store(folder, run, version=lambda cell: "")


def files(folder):
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*.json")}


def test_the_tables_agree_with_each_other():
    for row in PROBLEMS.values():
        assert {metric.task for metric in row.metrics} == set(range(len(row.tasks)))
        assert row.quick < row.passes
        assert row.seeds >= 3
    for name, rival in RIVALS.items():
        assert rival.name == name
        assert (rival.rule is None) != (rival.options is None)
        assert list(rival.rates) == sorted(rival.rates)
    hours = sum(planned(row, list(RIVALS.values())) for row in PROBLEMS.values()) / 3600 / 2
    assert hours < 6  # on two cores, as planned


def test_a_board_is_complete_and_is_not_run_twice(monkeypatch, tmp_path):
    row = toy.install(monkeypatch)["toy"]
    board = Board(store(tmp_path), list(cells.RIVALS.values()))
    table = board.run(row)
    assert set(table.rivals) == set(toy.NAMES)
    assert len(table.baseline) == 2
    for runs in table.rivals.values():
        assert len(runs.passes) == len(runs.seconds) == 2
        assert all(found["passes"] >= 640 for found in runs.passes)
    assert table.rivals["auto"].rates == [None, None]
    before = files(tmp_path)
    again = Board(store(tmp_path), list(cells.RIVALS.values())).run(row)
    assert files(tmp_path) == before
    assert again.rivals["smgd"].passes == table.rivals["smgd"].passes


def test_learning_rates_are_chosen_on_validation_data_and_the_grid_is_extended_once(tmp_path):
    row, tried = toy.problem(seeds=1), []

    def run(problem, rival, task, lr, seed, passes, data=None):
        tried.append((rival, lr, seed))
        value = 1.0 if lr is None else abs(math.log(lr / 0.03))  # best at 0.03, above the grid of Adam
        return {
            "validation": [value + 1] * 2,
            "test": [9.0 - value] * 2,
            "losses": [1.0, 1.0],
            "passes": passes,
            "seconds": 1.0,
        }

    found = Board(store(tmp_path, run), [RIVALS["adam-mean"], RIVALS["auto"]]).run(row)
    assert found.rivals["adam-mean"].rates == [0.03]
    assert [lr for rival, lr, seed in tried if rival == "adam-mean" and seed == 100] == [0.001, 0.003, 0.01, 0.03]
    assert not any(seed == 100 for rival, _, seed in tried if rival == "auto")


def test_with_folds_every_fold_has_its_own_learning_rate(tmp_path):
    row = toy.problem(seeds=2, folds=2)
    best = {100: 0.001, 101: 0.01}

    def run(problem, rival, task, lr, seed, passes, data=None):
        value = 1.0 + (abs(lr - best[seed]) if seed in best and lr else 0.0)
        return {"validation": [value] * 2, "test": [1.0] * 2, "losses": [1.0, 1.0], "passes": passes, "seconds": 1.0}

    found = Board(store(tmp_path, run), [RIVALS["adam-mean"]]).run(row)
    assert found.rivals["adam-mean"].rates == [0.001, 0.01]


def test_equal_seconds_are_passes_at_the_measured_speed():
    runs = [{"passes": 1000, "seconds": s} for s in (4.0, 5.0, 90.0)]  # one was disturbed: the median counts
    assert passes_within(2.0, runs, 1000) == 400
    assert passes_within(4.8, runs, 1000) == 1000  # within 10%
    assert passes_within(2.0, [{"passes": 0, "seconds": 1.0}], 1000) == 1000  # failed


def test_scores_are_delta_m_and_failed_runs_are_last():
    metrics = (Metric("auc", 0), Metric("deo", 1, higher=False, relative=False))
    assert math.isclose(score(metrics, [0.9, 0.05], [0.8, 0.0]), (-12.5 + 5.0) / 2)
    assert score(metrics, None, [0.8, 0.0]) == math.inf
    assert score(metrics, [0.9, 0.05], [None, 0.0]) == math.inf
    rows = [{"rival": "auto", "delta_m": 1.0}, {"rival": "smgd", "delta_m": None}]
    found = overall([{"tables": {"passes": rows}}], "passes")
    assert [(row["rival"], row["rank"]) for row in found] == [("auto", 1.0), ("smgd", 2.0)]


def test_a_cell_equals_training_by_hand(monkeypatch):
    toy.install(monkeypatch)
    found = run_cell("toy", "adam-mean", None, 0.01, 3, 640)
    made = toy.make(3, None)
    from stimulus_moo.lab.board.scalarised import Scalarisation, train

    train(made, Scalarisation(), lr=0.01, batch=16, passes=640, seed=3)
    assert found["test"] == made.score(made.model, "test")
    assert found["losses"] == pytest.approx([value - 1 for value in found["test"]], abs=1e-6)
    assert found["failed"] is None


def test_failed_runs_are_recorded_and_our_own_errors_are_raised(monkeypatch):
    toy.install(monkeypatch, toy.problem(make=lambda seed, folder: toy.make(seed, folder, scale=math.nan)))
    found = run_cell("toy", "adam-mean", None, 0.01, 0, 640)
    assert (found["failed"], found["test"]) == ("diverged", None)
    assert run_cell("toy", "auto", None, None, 0, 640)["failed"] == "diverged"

    def broken(seed, folder):
        made = toy.make(seed, folder)
        torch.nn.Module.__setattr__(made.model, "forward", lambda x: 1 / 0)
        return made

    toy.install(monkeypatch, toy.problem(make=broken))
    assert run_cell("toy", "adam-mean", None, 0.01, 0, 640)["failed"] == "ZeroDivisionError: division by zero"
    with pytest.raises(ZeroDivisionError):
        run_cell("toy", "smgd", None, 0.1, 0, 640)


def test_make_writes_figures_page_and_table(monkeypatch, tmp_path):
    toy.install(monkeypatch, toy.problem("one"), toy.problem("two"))
    found = make_board(["one", "two"], tmp_path, Console(quiet=True), quick=True)
    assert json.loads((tmp_path / "board.json").read_text())["quick"] is True
    for problem in found["problems"]:
        for row in problem["tables"]["passes"]:
            values = [row["metrics"], problem["baseline"]]
            assert math.isclose(row["delta_m"], delta_m(*values, higher=[False, False]), rel_tol=1e-9)
            assert row["hypervolume"] >= 0
    text = (tmp_path / "scoreboard.md").read_text()
    assert "its figures mean nothing" in text
    assert "| auto |" in text
    page = (tmp_path / "scoreboard.html").read_text()
    assert "Toy <one>" not in page.split("const board")[0]
    assert '"name": "one"' in page


def test_the_page_of_a_part_of_the_board_names_the_problems_that_were_not_run(monkeypatch, tmp_path):
    toy.install(monkeypatch, toy.problem("one"), toy.problem("two"))
    make_board(["one"], tmp_path, Console(quiet=True), quick=True)
    text = (tmp_path / "scoreboard.md").read_text()
    assert "`stimulus-moo board one --quick`" in text
    assert "**Not run: two.**" in text
    make_board(["two", "one"], tmp_path, Console(quiet=True), quick=True)
    text = (tmp_path / "scoreboard.md").read_text()
    assert "`stimulus-moo board --quick`" in text
    assert "Not run" not in text


def test_without_data_a_problem_is_left_out_and_without_any_there_is_an_error(monkeypatch, tmp_path):
    def absent(seed, folder):
        raise DataError("no file")

    toy.install(monkeypatch, toy.problem("here"), toy.problem("absent", make=absent))
    found = make_board(["here", "absent"], tmp_path, Console(quiet=True), quick=True)
    assert [problem["name"] for problem in found["problems"]] == ["here"]
    assert found["missing"] == ["absent (DataError)"]
    with pytest.raises(DataError, match="no problem of absent has its data"):
        make_board(["absent"], tmp_path, Console(quiet=True), quick=True)


def test_the_command_prints_the_table(monkeypatch, tmp_path):
    from typer.testing import CliRunner

    from stimulus_moo.lab import cli

    toy.install(monkeypatch)
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(cli.app, ["board", "--quick", "--processes", "1", "--page", "copy.md"])
    assert result.exit_code == 0, result.output
    assert "Mean rank" in result.stdout
    assert "left" in result.stderr
    assert (tmp_path / "copy.md").read_text() == (tmp_path / "runs/board/scoreboard.md").read_text()
    wrong = CliRunner().invoke(cli.app, ["board", "toys"])
    assert wrong.exit_code == 2
    assert "there is no problem 'toys'; did you mean 'toy'?" in wrong.stderr


def test_any_arff_file_is_a_problem(tmp_path):
    lines = ["@relation tiny", *(f"@attribute {name} numeric" for name in ("a", "b", "one", "two")), "@data"]
    generator = torch.Generator().manual_seed(0)
    rows = [f"{a:.4f},{b:.4f},{a + b:.4f},{a - b:.4f}" for a, b in torch.randn(200, 2, generator=generator).tolist()]
    file = tmp_path / "tiny.arff"
    file.write_text("\n".join([*lines, *rows]) + "\n")
    found = run_cell(f"{file}:2", "adam-mean", None, 0.01, 0, 20_000)
    assert len(found["test"]) == 2
    assert max(found["test"]) < 0.3  # of the error of the mean
    with pytest.raises(InvalidOption, match="there is no problem 'riverflo'; did you mean 'riverflow'"):
        find_problem("riverflo")
