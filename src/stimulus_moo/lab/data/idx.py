"""Strict reader of IDX files, the format of MNIST, gzipped or plain."""

from __future__ import annotations

import gzip
import math
import sys
import zlib
from os import PathLike
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from stimulus_moo.lab.data.errors import DataError

_DTYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
_GZIP_MAGIC = b"\x1f\x8b"
_MOST_DIMENSIONS = 8
_MOST_DEFLATE_RATIO = 1032  # maximum compression ratio of deflate, about 1032
_CHUNK = 1 << 20


def read_idx(path: str | PathLike[str]) -> NDArray[Any]:
    """Read one IDX file. The first bytes, not the name, determine whether it is gzipped.

    Memory is bounded by the size of the file: a header that claims more is refused before allocation, and unpacking
    stops one byte past the claimed size.

    Args:
        path: the file.

    Returns:
        An array of the file's shape, in native byte order.

    Raises:
        DataError: not a regular file, not IDX, truncated, or followed by other bytes.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder, "tiny-idx1-ubyte")
    ...     _ = file.write_bytes(bytes([0, 0, 8, 1, 0, 0, 0, 3, 5, 6, 7]))
    ...     read_idx(file)
    array([5, 6, 7], dtype=uint8)
    """
    path = Path(path)
    if not path.is_file():
        raise DataError(
            f"{path}: expected an IDX file, found {'no regular file' if path.exists() else 'nothing'} there"
        )
    try:
        packed_size = path.stat().st_size
        with path.open("rb") as raw:
            packed = raw.read(2) == _GZIP_MAGIC
            raw.seek(0)
            if packed:
                with gzip.GzipFile(fileobj=raw) as stream:
                    return _read(path, stream, packed_size * _MOST_DEFLATE_RATIO)
            return _read(path, raw, packed_size)
    except (EOFError, OSError, zlib.error) as error:
        raise DataError(f"{path}: expected an intact IDX file, found it truncated or damaged ({error})") from error


def _read(path: Path, stream: IO[bytes] | gzip.GzipFile, most_bytes: int) -> NDArray[Any]:
    dtype, shape = _header(path, stream)
    expected = math.prod(shape) * dtype.itemsize
    claim = f"the header claims {' x '.join(map(str, shape))} values of {dtype}, {expected:,} bytes"
    if expected > most_bytes:
        raise DataError(f"{path}: {claim}, but the file can hold {most_bytes:,} at most")
    if math.prod(size or 1 for size in shape) * dtype.itemsize > sys.maxsize:  # possible if another dimension is 0
        raise DataError(f"{path}: {claim}, with dimensions that no array can have")
    content = _read_up_to(stream, expected + 1)
    if len(content) != expected:
        found = f"{len(content):,}" if len(content) < expected else "more"
        raise DataError(f"{path}: {claim}, found {found}")
    return np.frombuffer(content, dtype).reshape(shape).astype(dtype.newbyteorder("="), copy=False)


def _header(path: Path, stream: IO[bytes] | gzip.GzipFile) -> tuple[np.dtype[Any], tuple[int, ...]]:
    magic = _read_up_to(stream, 4)
    if len(magic) < 4 or magic[:2] != b"\0\0" or magic[2] not in _DTYPES or not 1 <= magic[3] <= _MOST_DIMENSIONS:
        raise DataError(
            f"{path}: expected IDX (two zero bytes, a type code, 1 to {_MOST_DIMENSIONS} dimensions), "
            f"found the first bytes {bytes(magic).hex(' ') or 'missing'}"
        )
    dimensions = _read_up_to(stream, 4 * magic[3])
    if len(dimensions) < 4 * magic[3]:
        raise DataError(f"{path}: expected {magic[3]} dimensions in the IDX header, found the file cut inside it")
    return np.dtype(_DTYPES[magic[2]]), tuple(int(size) for size in np.frombuffer(dimensions, ">u4"))


def _read_up_to(stream: IO[bytes] | gzip.GzipFile, count: int) -> bytearray:
    content = bytearray()
    while len(content) < count:
        chunk = stream.read(min(_CHUNK, count - len(content)))
        if not chunk:
            break
        content += chunk
    return content
