"""One process per run directory: a lock that the system releases when its holder ends, however it ends."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from stimulus_moo.lab.storage import RunError

FILE = ".lock"


class FolderLock:
    """A context manager that holds a directory, making it first; one that is still empty at the end is removed.

    Raises:
        RunError: another process holds it.
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self._path = folder, folder / FILE
        self._made: list[Path] = []
        self._file = -1

    def __enter__(self) -> FolderLock:
        self._made = [path for path in (self._folder, *self._folder.parents) if not path.exists()]
        while True:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._file = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o644)
            if not _take(self._file):
                os.close(self._file)
                raise RunError(f"{self._folder} is in use by another process; wait for it, or choose another --out")
            if self._still_there():
                return self
            os.close(self._file)  # its last holder removed the file while we opened it

    def __exit__(self, *_: object) -> None:
        try:
            if self._made and [path.name for path in self._folder.iterdir()] == [FILE]:
                self._path.unlink()
                for folder in self._made:
                    folder.rmdir()
        except OSError:
            pass  # someone else put something there, or took it away: nothing to tidy
        finally:
            os.close(self._file)

    def _still_there(self) -> bool:
        try:
            return os.path.samestat(os.fstat(self._file), os.stat(self._path))
        except FileNotFoundError:
            return False


def _take(file: int) -> bool:
    """Lock an open file for this process, and tell whether that worked."""
    try:
        if sys.platform == "win32":
            import msvcrt

            msvcrt.locking(file, msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
