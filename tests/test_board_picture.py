"""The scoreboard's picture and the table that pages take from it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from docs import board_picture
from stimulus_moo.lab.board.board import PASSES, SECONDS
from stimulus_moo.lab.board.markdown import LINE, problem_lines
from stimulus_moo.lab.board.summary import overall


@pytest.fixture
def board() -> dict[str, Any]:
    """Two problems and three methods; one has failed on the second problem."""
    scores = {"auto": (-2.0, 1.0), "adam-mean": (0.0, 0.5), "smgd": (3.0, None)}
    problems = [
        {
            "name": name,
            "title": name.title(),
            "tables": {
                kind: [{"rival": r, "delta_m": s[k], "worst": 2.0} for r, s in scores.items()]
                for kind in (PASSES, SECONDS)
            },
        }
        for k, name in enumerate(("one", "two"))
    ]
    both = {kind: overall(problems, kind) for kind in (PASSES, SECONDS)}
    return {"quick": False, "commit": "abc", "date": "2026-11-17", "problems": problems, "overall": both}


def test_the_table_has_the_best_mean_rank_first(board: dict[str, Any]) -> None:
    table = board_picture.rows(board)
    assert [row[:3] for row in table] == [
        ["auto", "1.50", "-0.50"],
        ["adam-mean", "1.50", "0.25"],
        ["smgd", "3.00", "-"],
    ]
    assert all(len(row) == len(board_picture.COLUMNS) for row in table)


def test_each_problem_has_its_best_method(board: dict[str, Any]) -> None:
    lines = [
        ["One", "-2.00", "0.00", "-2.00 (auto)", "2.00", "2.00"],
        ["Two", "1.00", "0.50", "0.50 (adam-mean)", "2.00", "2.00"],
    ]
    assert problem_lines(board) == lines
    assert all(len(line) == len(LINE) for line in lines)


def test_a_method_that_failed_is_last(board: dict[str, Any]) -> None:
    assert [row["ranks"] for row in board["overall"][SECONDS]] == [[1.0, 2.0], [2.0, 1.0], [3.0, 3.0]]


def test_the_results_file_names_the_board_s_commit(board: dict[str, Any], tmp_path: Path) -> None:
    board_picture.keep(board, tmp_path / "results" / "board.json")
    section = json.loads((tmp_path / "results" / "board.json").read_text(encoding="utf-8"))["sections"]["board"]
    assert (section["commit"], section["rows"][0][0]) == ("abc", "auto")


def test_the_picture_shows_every_method_and_every_problem(board: dict[str, Any]) -> None:
    (panel,) = board_picture.draw(board, dark=True, narrow=True).axes
    assert [label.get_text() for label in panel.get_yticklabels()] == ["auto", "adam-mean", "smgd"]
    dots = [tuple(point) for group in panel.collections for point in group.get_offsets().tolist()]
    assert dots == [(1, 0), (2, 0), (1.5, 0), (2, 1), (1, 1), (1.5, 1), (3, 2), (3, 2), (3, 2)]
