"""Lock of a run directory, so that only one process writes to it."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from stimulus_moo.lab.runs.storage import RunError
from stimulus_moo.training.lock import FolderLock

FILE = ".stimulus-moo.lock"


class RunLock:
    """Context manager that creates a directory if necessary and locks it.

    On exit, directories that this lock created are removed if nothing was written to them.

    Raises:
        RunError: another process holds the lock, or the lock file is a symbolic link.
        NotWritten: the directory is read-only.
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self._lock = folder, FolderLock(folder, FILE)
        self._created: list[Path] = []

    def __enter__(self) -> RunLock:
        self._created = [path for path in (self._folder, *self._folder.parents) if not path.exists()]
        self._folder.mkdir(parents=True, exist_ok=True)
        if self._lock.path.is_symlink():
            raise RunError(f"{self._lock.path} is a symbolic link; remove it, or choose another --out")
        if not self._lock.acquire():
            raise RunError(f"{self._folder} is in use by another process; wait for it, or choose another --out")
        return self

    def __exit__(self, *_: object) -> None:
        self._lock.release()
        with suppress(OSError):  # not empty, or in use by another process by now
            for folder in self._created:
                folder.rmdir()
