"""Files that survive a crash: written whole or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from stimulus_moo.errors import NotWritten


def write_whole(path: str | Path, write: Callable[[BinaryIO], object]) -> None:
    """Let ``write`` fill a file beside ``path``, wait until it is on the disk, then put it in the place of the old one.

    Whatever happens, ``path`` holds either what it held before or all that was written; a reader never sees half of it.

    Args:
        path: the file to write; its folder must exist.
        write: called with the open binary file.

    Raises:
        NotWritten: the disk is full, the folder is gone or may not be written to; ``path`` is as it was.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_whole(Path(folder, "a.txt"), lambda file: file.write(b"all of it"))
    ...     Path(folder, "a.txt").read_bytes(), os.listdir(folder)
    (b'all of it', ['a.txt'])
    """
    path = Path(path)
    with not_written(path):
        _write(path, write)
    sync_folder(path.parent)


@contextmanager
def not_written(path: Path) -> Iterator[None]:
    """Turn the system's error of a write into one that names the file it was for."""
    try:
        yield
    except NotWritten:
        raise
    except OSError as error:
        raise NotWritten(path, error) from error


def _write(path: Path, write: Callable[[BinaryIO], object]) -> None:
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o666 & ~_UMASK)
        os.replace(name, path)
    except BaseException:
        with suppress(OSError):  # the folder may be gone
            Path(name).unlink(missing_ok=True)
        raise


def sync_folder(folder: Path) -> None:
    """Wait until what was renamed or removed in a folder is on the disk, where the system lets a folder be opened."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:
        return
    try:
        with suppress(OSError):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


_UMASK = _umask()  # once: it cannot be read without being set for a moment
