"""A lock on a folder, so that only one process writes to it."""

from contextlib import suppress
from pathlib import Path

from filelock import FileLock, Timeout

from stimulus_moo.training.files import not_written


class FolderLock:
    """Locks a folder with a file in it, which is there only as long as the lock.

    The operating system releases the lock when the process ends for any reason; a file left by a killed process does
    not matter.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     first, second = FolderLock(Path(folder), ".lock"), FolderLock(Path(folder), ".lock")
    ...     first.acquire(), second.acquire(), first.release(), second.acquire(), second.release()
    (True, False, None, True, None)
    """

    def __init__(self, folder: Path, name: str) -> None:
        self.path = folder / name
        self._lock = FileLock(self.path, timeout=0)

    def acquire(self) -> bool:
        """Return whether the lock could be had; the folder must exist, and NotWritten tells that it is read-only."""
        while True:
            with not_written(self.path):
                if self.path.is_symlink():  # filelock would follow it
                    self.path.unlink()
                try:
                    self._lock.acquire()
                except Timeout:
                    return False
            if self.path.exists():
                return True
            self._lock.release()  # the previous holder removed the file after this process opened it

    def release(self) -> None:
        """Remove the file and release the lock, if it is held."""
        if self._lock.is_locked:
            with suppress(OSError):  # the folder is gone or read-only by now; a file that is left does not matter
                self.path.unlink()
            self._lock.release()
