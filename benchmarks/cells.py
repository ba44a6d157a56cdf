"""Cached runs: every cell is its own JSON file, so that a long comparison can be stopped and resumed."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from stimulus_moo.lab.runs.storage import write_json

#: the settings of a cell, and the results of its run
Settings = Mapping[str, Any]
Found = dict[str, Any]


def fill(
    folder: Path, run: Callable[..., Found], cells: Sequence[Settings], version: str, workers: int | None = None
) -> list[Found]:
    """Return the results of ``run(**settings)`` for every cell, from the folder if they exist there.

    Args:
        folder: contains the JSON files.
        run: a module-level function, so that other processes can call it.
        cells: settings, serializable as JSON.
        version: change it when the meaning of a cell changes.
        workers: processes; default one per core. Do not use it for timing.
    """
    folder.mkdir(parents=True, exist_ok=True)
    paths = [_path(folder, cell, version) for cell in cells]
    missing = {path: cell for path, cell in zip(paths, cells, strict=True) if not path.exists()}
    workers = min(workers or os.cpu_count() or 1, len(missing))
    if workers > 1:
        with ProcessPoolExecutor(workers, get_context("spawn"), initializer=_one_thread) as pool:
            waiting = {pool.submit(run, **cell): (path, cell) for path, cell in missing.items()}
            for done, future in enumerate(as_completed(waiting), 1):
                _keep(*waiting[future], future.result(), f"{done} of {len(missing)}")
    else:
        for done, (path, cell) in enumerate(missing.items(), 1):
            _keep(path, cell, run(**cell), f"{done} of {len(missing)}")
    return [json.loads(path.read_text(encoding="utf-8"))["found"] for path in paths]


def _one_thread() -> None:
    torch.set_num_threads(1)


def _keep(path: Path, cell: Settings, found: Found, place: str) -> None:
    write_json(path, {"cell": dict(cell), "found": found})
    print(f"{place}: {', '.join(f'{key} {value}' for key, value in cell.items())}: {found}", flush=True)


def _path(folder: Path, cell: Settings, version: str) -> Path:
    text = json.dumps([version, dict(cell)], sort_keys=True)
    return folder / f"{hashlib.sha256(text.encode()).hexdigest()[:24]}.json"
