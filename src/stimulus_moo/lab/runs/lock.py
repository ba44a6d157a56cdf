"""Lock of a run directory, so that only one process writes to it."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from filelock import FileLock, Timeout

from stimulus_moo.lab.runs.storage import RunError

FILE = ".stimulus-moo.lock"


class FolderLock:
    """Context manager that creates a directory if necessary and locks it.

    The operating system releases the lock when the process ends for any reason. On exit, directories that this lock
    created are removed if nothing was written to them.

    Raises:
        RunError: another process holds the lock, or the lock file is a symbolic link.
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self._path = folder, folder / FILE
        self._created: list[Path] = []
        self._lock = FileLock(self._path, timeout=0)

    def __enter__(self) -> FolderLock:
        self._created = [path for path in (self._folder, *self._folder.parents) if not path.exists()]
        while True:
            self._folder.mkdir(parents=True, exist_ok=True)
            if self._path.is_symlink():  # filelock may follow it and truncate its target
                raise RunError(f"{self._path} is a symbolic link; remove it, or choose another --out")
            try:
                self._lock.acquire()
            except Timeout:
                raise RunError(
                    f"{self._folder} is in use by another process; wait for it, or choose another --out"
                ) from None
            if self._path.exists():
                return self
            self._lock.release()  # the previous holder removed the directory after this process opened the file

    def __exit__(self, *_: object) -> None:
        try:
            with suppress(OSError):  # another process added or removed files: nothing to clean up
                if self._created and [path.name for path in self._folder.iterdir()] == [FILE]:
                    self._path.unlink()
                    for folder in self._created:
                        folder.rmdir()
        finally:
            self._lock.release()
