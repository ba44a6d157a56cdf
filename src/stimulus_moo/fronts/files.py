"""The files of a front: ``front.json``, one file of parameters per point, and the page."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from stimulus_moo import InvalidOption, MissingDependency, StateMismatch
from stimulus_moo.fronts.front import FrontPoint
from stimulus_moo.training.files import write_whole

if TYPE_CHECKING:
    from stimulus_moo.fronts.front import Front

_TABLE, _PAGE, _VERSION = "front.json", "front.html", 1


def save(front: Front, folder: Path) -> None:
    """Write everything; the settings of a traced front are kept."""
    numbers = [run.number for run in (*front.points, *front.left_out)]
    if twice := sorted({number for number in numbers if numbers.count(number) > 1}):
        raise InvalidOption(
            f"points must have different numbers to be saved, found {twice} twice; give new ones with "
            "dataclasses.replace(point, number=...)"
        )
    settings = _read(folder)["settings"] if (folder / _TABLE).exists() else {}
    folder.mkdir(parents=True, exist_ok=True)
    for point in front.points:
        _write_state(folder, point)
    write(folder, front.points, front.left_out, front.names, settings)
    write_page(front, folder)


def write_page(front: Front, folder: Path) -> Path | None:
    """Write the page; return its path, or None if plotly is not installed."""
    from stimulus_moo.fronts.page import page

    try:
        text = page(front, folder)
    except MissingDependency:
        return None
    write_whole(folder / _PAGE, lambda file: file.write(text.encode()))
    return folder / _PAGE


def write(
    folder: Path,
    points: Sequence[FrontPoint],
    left_out: Sequence[FrontPoint],
    names: Sequence[str] | None,
    settings: dict[str, Any],
) -> None:
    """Write the parameters of points that are not there yet, then the table, then delete the others' parameters."""
    folder.mkdir(parents=True, exist_ok=True)
    listed = _read(folder)["points"] if (folder / _TABLE).exists() else []
    there = {row.get("number") for row in listed if isinstance(row, dict)}  # other files are of an interrupted call
    for point in points:
        if point.number not in there or not (folder / state_file(point.number)).exists():
            _write_state(folder, point)
    table = {
        "version": _VERSION,
        "names": None if names is None else list(names),
        "settings": settings,
        "points": [_row(point) for point in points],
        "left_out": [_row(run) for run in left_out],
    }
    write_whole(folder / _TABLE, lambda file: file.write(json.dumps(table, indent=1).encode()))
    for run in left_out:
        (folder / state_file(run.number)).unlink(missing_ok=True)


def resume(folder: Path, settings: dict[str, Any]) -> list[FrontPoint]:
    """Return the runs in a folder, none if there is no front yet; raise StateMismatch for other settings."""
    if not (folder / _TABLE).exists():
        return []
    found = _read(folder)["settings"]
    for name in sorted({*found, *settings}):
        made, own = found.get(name), settings.get(name)
        if made != own:
            raise StateMismatch(
                f"the front in {folder} was made with {name}={made!r}, this call has {own!r}; use the same settings or "
                "another folder"
            )
    points, left_out, _ = load(folder)
    return sorted((*points, *left_out), key=lambda run: run.number)


def load(folder: Path) -> tuple[list[FrontPoint], list[FrontPoint], list[str] | None]:
    """Return the points, the runs that were left out, and the names."""
    table = _read(folder)
    points = [
        _point(folder, row, lambda path: torch.load(path, map_location="cpu", weights_only=True))
        for row in table["points"]
    ]
    return points, [_point(folder, row, lambda _: {}) for row in table["left_out"]], table["names"]


def state_file(number: int) -> str:
    """Return the name of the file with the parameters of a point."""
    return f"point-{number:03d}.pt"


def _read(folder: Path) -> dict[str, Any]:
    path = folder / _TABLE
    try:
        table = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise StateMismatch(f"there is no front in {folder}: {_TABLE} is missing") from None
    except (OSError, ValueError) as error:
        raise StateMismatch(f"{path} cannot be read ({error}); use another folder") from error
    if (
        not isinstance(table, dict)
        or table.get("version") != _VERSION
        or not all(isinstance(table.get(part), list) for part in ("points", "left_out"))
    ):
        raise StateMismatch(f"{path} is not a front of this version; use another folder")
    return table


def _point(folder: Path, row: Any, state: Callable[[Path], Any]) -> FrontPoint:
    try:
        return FrontPoint(**row, state=state(folder / state_file(row["number"])))
    except (OSError, RuntimeError, EOFError, KeyError, TypeError, ValueError, pickle.UnpicklingError) as error:
        raise StateMismatch(f"a point of the front in {folder} cannot be read ({error}); delete the folder") from error


def _write_state(folder: Path, point: FrontPoint) -> None:
    write_whole(folder / state_file(point.number), lambda file: torch.save(point.state, file))


def _row(run: FrontPoint) -> dict[str, Any]:
    return {name: value for name, value in vars(run).items() if name != "state"}
