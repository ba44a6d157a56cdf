"""The files of a front: ``front.json``, one file of parameters per point, and the page."""

from __future__ import annotations

import json
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from stimulus_moo import MissingDependency, StateMismatch
from stimulus_moo.fronts.front import FrontPoint
from stimulus_moo.training.files import write_whole

if TYPE_CHECKING:
    from stimulus_moo.fronts.front import Front

_TABLE, _PAGE, _VERSION = "front.json", "front.html", 1


def save(front: Front, folder: Path) -> None:
    """Write everything; the settings of a traced front are kept."""
    settings = _read(folder)["settings"] if (folder / _TABLE).exists() else {}
    folder.mkdir(parents=True, exist_ok=True)
    for point in front.points:
        _write_state(folder, point)
    _write_table(folder, front.points, front.names, settings)
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


def add(folder: Path, points: Sequence[FrontPoint], names: Sequence[str] | None, settings: dict[str, Any]) -> None:
    """Write the last point, then the table that names it."""
    folder.mkdir(parents=True, exist_ok=True)
    _write_state(folder, points[-1])
    _write_table(folder, points, names, settings)


def resume(folder: Path, settings: dict[str, Any]) -> list[FrontPoint]:
    """Return the points in a folder, none if there is no front yet; raise StateMismatch for other settings."""
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
    return load(folder)[0]


def load(folder: Path) -> tuple[list[FrontPoint], list[str] | None]:
    """Return the points and the names."""
    table = _read(folder)
    return [_point(folder, row) for row in table["points"]], table["names"]


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
    if not isinstance(table, dict) or table.get("version") != _VERSION or not isinstance(table.get("points"), list):
        raise StateMismatch(f"{path} is not a front of this version; use another folder")
    return table


def _point(folder: Path, row: Any) -> FrontPoint:
    try:
        path = folder / state_file(row["number"])
        state = torch.load(path, map_location="cpu", weights_only=True)
        return FrontPoint(**row, state=state)
    except (OSError, RuntimeError, EOFError, KeyError, TypeError, ValueError, pickle.UnpicklingError) as error:
        raise StateMismatch(f"a point of the front in {folder} cannot be read ({error}); delete the folder") from error


def _write_state(folder: Path, point: FrontPoint) -> None:
    write_whole(folder / state_file(point.number), lambda file: torch.save(point.state, file))


def _write_table(
    folder: Path, points: Sequence[FrontPoint], names: Sequence[str] | None, settings: dict[str, Any]
) -> None:
    rows = [{name: value for name, value in vars(point).items() if name != "state"} for point in points]
    table = {"version": _VERSION, "names": None if names is None else list(names), "settings": settings, "points": rows}
    write_whole(folder / _TABLE, lambda file: file.write(json.dumps(table, indent=1).encode()))
