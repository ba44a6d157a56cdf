"""Atomic file writes: a file is written completely or not at all. All files of this library are written here."""

import os
import re
import secrets
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from stimulus_moo.errors import NotWritten

_UMASK = os.umask(0)  # read once, since it cannot be read without setting it
os.umask(_UMASK)

#: Full names of the temporary files: no editor or other program makes such names.
_TEMPORARY = re.compile(r"\.stimulus-moo-[0-9a-f]{32}\.tmp")
_BINARY: int = getattr(os, "O_BINARY", 0)  # Windows only


def write_whole(path: str | Path, write: Callable[[BinaryIO], object]) -> None:
    """Write a temporary file beside ``path``, flush it to the disk, and move it to ``path``.

    ``path`` holds either its previous content or all of the new content, whatever happens. If ``path`` is a symbolic
    link, the link is replaced; its target does not change.

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
        name = path.parent / f".stimulus-moo-{secrets.token_hex(16)}.tmp"
        descriptor = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _BINARY, 0o600)
        try:
            with os.fdopen(descriptor, "wb") as file:
                write(file)
                file.flush()
                os.fsync(file.fileno())
            os.chmod(name, 0o666 & ~_UMASK)
            os.replace(name, path)
        except BaseException:
            with suppress(OSError):  # the folder may be gone
                name.unlink(missing_ok=True)
            raise
    with suppress(OSError):  # some systems cannot open or flush a folder
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def open_for_appending(path: Path) -> int:
    """Return the descriptor of a file opened for appending; a symbolic link is first replaced by a copy of its target.

    Raises:
        NotWritten: the file cannot be created or opened.
    """
    with not_written(path):
        if path.is_symlink():
            content = path.read_bytes() if path.is_file() else b""
            write_whole(path, lambda file: file.write(content))
        follow = getattr(os, "O_NOFOLLOW", 0)
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | follow | _BINARY, 0o644)


def remove_leftovers(folder: Path) -> None:
    """Remove the temporary files of a killed process from a folder that this process may write to.

    Only regular files whose full name is one of ``write_whole`` are removed; the files they were meant to replace are
    intact.
    """
    for path in folder.iterdir():
        if _TEMPORARY.fullmatch(path.name):
            with suppress(OSError):  # already gone, or not ours to remove
                if stat.S_ISREG(path.lstat().st_mode):
                    path.unlink()


@contextmanager
def not_written(path: Path) -> Iterator[None]:
    """Convert an OSError to NotWritten, which names the file."""
    try:
        yield
    except NotWritten:
        raise
    except OSError as error:
        raise NotWritten(path, error) from error
