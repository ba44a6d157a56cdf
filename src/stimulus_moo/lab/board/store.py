"""Cells on disk: every run is its own JSON file, so that a long board can be stopped at any time and resumed."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from stimulus_moo.lab.runs.storage import read_json, write_json

Cell = Mapping[str, Any]
Found = dict[str, Any]


class Store:
    """The cells of one folder, run by ``run(**cell)`` where they are missing.

    Args:
        folder: contains the JSON files, one folder per problem.
        run: a module-level function, so that other processes can call it.
        version: function from a cell to what it depends on besides its settings; if that changes, it is run again.
        workers: processes; each uses one thread.
        told: called once for each cell, and whether it was run now or found on disk.
    """

    def __init__(
        self,
        folder: Path,
        run: Callable[..., Found],
        *,
        version: Callable[[Cell], str],
        workers: int = 1,
        told: Callable[[Cell, bool], None] = lambda cell, new: None,
    ) -> None:
        self.folder, self.run, self.version, self.workers, self.told = folder, run, version, workers, told
        self._pool: ProcessPoolExecutor | None = None
        self._seen: set[Path] = set()

    @contextmanager
    def opened(self) -> Iterator[Store]:
        """Start the processes, and end them at the end."""
        if self.workers > 1:
            self._pool = ProcessPoolExecutor(self.workers, get_context("spawn"), initializer=_one_thread)
        try:
            yield self
        finally:
            if self._pool is not None:
                self._pool.shutdown(cancel_futures=True)
                self._pool = None

    def fill(self, cells: Sequence[Cell], data: str | None) -> list[Found]:
        """Return the results of cells, in their order; those that are missing are run."""
        paths = [self.path(cell) for cell in cells]
        kept = [read_json(path) for path in paths]
        missing = {}
        for path, cell, found in zip(paths, cells, kept, strict=True):
            if found is None:
                missing[path] = cell
            elif path not in self._seen:
                self._seen.add(path)
                self.told(cell, False)
        for path, cell, found in self._results(missing, data):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_json(path, {"cell": dict(cell), "found": found})
            self._seen.add(path)
            self.told(cell, True)
        return [_found(path) for path in paths]

    def _results(self, missing: Mapping[Path, Cell], data: str | None) -> Iterator[tuple[Path, Cell, Found]]:
        if self._pool is None:
            for path, cell in missing.items():
                yield path, cell, self.run(**cell, data=data)
            return
        waiting = {self._pool.submit(self.run, **cell, data=data): (path, cell) for path, cell in missing.items()}
        for future in as_completed(waiting):
            yield *waiting[future], future.result()

    def path(self, cell: Cell) -> Path:
        """Return the file of a cell."""
        text = json.dumps([self.version(cell), dict(cell)], sort_keys=True)
        name = f"{cell['rival']}-{hashlib.sha256(text.encode()).hexdigest()[:16]}.json"
        return Path(self.folder, re.sub(r"[^\w+-]+", "_", cell["problem"]), name)


def _found(path: Path) -> Found:
    read = read_json(path)
    assert read is not None
    found: Found = read["found"]
    return found


def _one_thread() -> None:
    torch.set_num_threads(1)
