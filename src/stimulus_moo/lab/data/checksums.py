"""Verification of data files: size and SHA-256 as in the registry."""

from __future__ import annotations

import gzip
import hashlib
import zlib
from pathlib import Path

from stimulus_moo.lab.data.errors import DataError
from stimulus_moo.lab.data.registry import DataFile

_CHUNK = 1 << 20
_GZIP_MAGIC = b"\x1f\x8b"


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal.

    Raises:
        DataError: the file cannot be read.
    """
    try:
        with path.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise DataError(f"{path}: expected a readable file, found: {error}") from error


def problem(file: DataFile, path: Path) -> str | None:
    """Compare the content of a file, unpacked if gzipped, with the checksum in the registry.

    Returns:
        None if it matches or no checksum is known, otherwise a sentence with the difference.
    """
    if file.sha256 is None:
        return None
    try:
        size, sha256 = _content(path, file.size)
    except (EOFError, OSError, zlib.error) as error:
        return f"{path}: expected {file.size:,} bytes of content, found the file truncated or damaged ({error})"
    if size != file.size:
        found = f"{size:,}" if size < file.size else "more"
        return f"{path}: expected {file.size:,} bytes of content, found {found}"
    if sha256 != file.sha256:
        return f"{path}: expected content with sha256 {file.sha256}, found {sha256}"
    return None


def quick_problem(file: DataFile, path: Path) -> str | None:
    """Compare the size of a file with the registry, without reading its content.

    A gzipped file stores its unpacked size at the end.

    Returns:
        None if the size matches or none is known, otherwise a sentence with the difference.
    """
    if file.sha256 is None:
        return None
    try:
        with path.open("rb") as stream:
            packed = stream.read(2) == _GZIP_MAGIC
            size = stream.seek(0, 2)
            if packed and size >= 4:
                stream.seek(-4, 2)
                size = int.from_bytes(stream.read(4), "little")
    except OSError as error:
        return f"{path}: expected a readable file, found: {error}"
    if size != file.size:
        return f"{path}: expected {file.size:,} bytes of content, found {size:,}"
    return None


def _content(path: Path, most: int) -> tuple[int, str]:
    """Return size and SHA-256 of the content, reading at most one byte past ``most``."""
    digest, size = hashlib.sha256(), 0
    with path.open("rb") as raw:
        packed = raw.read(2) == _GZIP_MAGIC
        raw.seek(0)
        stream = gzip.GzipFile(fileobj=raw) if packed else raw
        while size <= most and (chunk := stream.read(min(_CHUNK, most + 1 - size))):
            digest.update(chunk)
            size += len(chunk)
    return size, digest.hexdigest()
