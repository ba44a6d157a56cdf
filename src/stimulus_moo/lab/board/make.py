"""Make the scoreboard: run what is missing, and write its figures, the page in Markdown and the interactive page."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from stimulus_moo import MissingDependency
from stimulus_moo.lab.board import problems as table_of_problems
from stimulus_moo.lab.board import rivals as table_of_rivals
from stimulus_moo.lab.board.board import PASSES, SECONDS, Board
from stimulus_moo.lab.board.cell import run_cell
from stimulus_moo.lab.board.markdown import markdown
from stimulus_moo.lab.board.meter import Meter
from stimulus_moo.lab.board.page import page
from stimulus_moo.lab.board.problems import find_problem
from stimulus_moo.lab.board.store import Cell, Store
from stimulus_moo.lab.board.summary import overall, problem_summary
from stimulus_moo.lab.data import DataError
from stimulus_moo.lab.runs.core_checksum import core_checksum
from stimulus_moo.lab.runs.directory import now, versions
from stimulus_moo.lab.runs.lock import RunLock
from stimulus_moo.lab.runs.storage import write_json, write_text

_VERSION = "3"  # change it when the meaning of a cell changes
FIGURES, MARKDOWN, PAGE = "board.json", "scoreboard.md", "scoreboard.html"


def make_board(
    names: Sequence[str],
    out: Path,
    console: Console,
    *,
    quick: bool = False,
    data: Path | None = None,
    workers: int = 1,
) -> dict[str, Any]:
    """Run the cells that are missing below ``out``, write the three files there, and return the figures.

    Args:
        names: problems, see ``find_problem``.
        out: folder of the cells and the results.
        console: for progress.
        quick: tiny budgets, one seed; the cells are kept apart.
        data: data folder, or None.
        workers: processes.

    Raises:
        DataError: there is data for none of the problems.
        InvalidOption: there is no such problem.
        RunError: another process uses the folder.
    """
    rows = [find_problem(name) for name in names]
    rivals = [rival for rival in table_of_rivals.RIVALS.values() if rival.available]
    missing = [
        f"{rival.name} ({', '.join(rival.needs)})" for rival in table_of_rivals.RIVALS.values() if not rival.available
    ]
    meter = Meter(console, rows, rivals, quick=quick)
    folder = out / ("quick" if quick else "cells")
    store = Store(folder, run_cell, version=_version, workers=workers, told=meter.told)
    board = Board(store, rivals, quick=quick, data=None if data is None else str(data))
    others = [name for name in table_of_problems.PROBLEMS if name not in names]
    found = []
    with RunLock(out), store.opened():
        for row in rows:
            meter.begin(row.name)
            try:
                found.append(problem_summary(board.run(row)))
            except (DataError, MissingDependency) as error:
                console.print(f"{row.title} is left out: {error}", highlight=False)
                missing.append(f"{row.name} ({type(error).__name__})")
            meter.end(row.name)
        if not found:
            raise DataError(f"no problem of {', '.join(names)} has its data; see `stimulus-moo data list`")
        library = versions()
        figures = {
            "quick": quick,
            "command": " ".join(["stimulus-moo board", *(names if others else ()), *(["--quick"] if quick else ())]),
            "date": now(),
            "commit": library.pop("commit", "unknown"),
            "versions": {**library, **installed("torchjd", "rdkit", "cvxpy")},
            "missing": missing,
            "others": others,
            "problems": found,
            "overall": {kind: overall(found, kind) for kind in (PASSES, SECONDS)},
        }
        write_json(out / FIGURES, figures)
        write_text(out / MARKDOWN, markdown(figures))
        write_text(out / PAGE, page(figures))
    return figures


def _version(cell: Cell) -> str:
    """Return what a cell depends on: the problem's setting, and for our own methods the library's code."""
    row, rival = find_problem(cell["problem"]), table_of_rivals.RIVALS.get(cell["rival"])
    code = core_checksum() if rival is not None and rival.ours else ""
    return f"{_VERSION}, torch {torch.__version__}, {row.setting}, batch {row.batch}, {code}"


def installed(*packages: str) -> dict[str, str]:
    """Return the versions of those packages that are installed."""
    found = {}
    for package in packages:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
