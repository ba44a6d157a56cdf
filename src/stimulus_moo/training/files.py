"""Atomic file writes: a file is written completely or not at all."""

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from stimulus_moo.errors import NotWritten

_UMASK = os.umask(0)  # read once, since it cannot be read without setting it
os.umask(_UMASK)


def write_whole(path: str | Path, write: Callable[[BinaryIO], object]) -> None:
    """Write a temporary file beside ``path``, flush it to the disk, and move it to ``path``.

    ``path`` holds either its previous content or all of the new content, whatever happens.

    Args:
        path: the file to write; its folder must exist.
        write: called with the open binary file.

    Raises:
        NotWritten: the disk is full, or the folder is gone or read-only; the previous file is intact.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_whole(Path(folder, "a.txt"), lambda file: file.write(b"all of it"))
    ...     Path(folder, "a.txt").read_bytes(), os.listdir(folder)
    (b'all of it', ['a.txt'])
    """
    path = Path(path)
    with not_written(path):
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
    with suppress(OSError):  # some systems cannot open or flush a folder
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


@contextmanager
def not_written(path: Path) -> Iterator[None]:
    """Convert an OSError to NotWritten, which names the file."""
    try:
        yield
    except NotWritten:
        raise
    except OSError as error:
        raise NotWritten(path, error) from error
