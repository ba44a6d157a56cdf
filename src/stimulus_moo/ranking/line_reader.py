"""Reader of lines from plain or compressed files, with limits that protect against decompression bombs."""

from __future__ import annotations

import bz2
import gzip
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from stimulus_moo.ranking.errors import InvalidRankingData

_LONGEST_LINE = 1 << 24
_MOST_UNPACKED = 1 << 26  # bytes that are always allowed
_LARGEST_RATIO = 300  # beyond that; numbers as text typically compress by a factor of 5 to 10

_OPENERS = {".gz": gzip.open, ".bz2": bz2.open}


class LineReader:
    """Context manager that iterates over the lines of a file; ``.gz`` and ``.bz2`` are unpacked.

    Raises:
        InvalidRankingData: the file is missing, a line is too long, or the file unpacks to a suspicious size.

    >>> import gzip, pathlib, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = pathlib.Path(folder, "lines.gz")
    ...     _ = file.write_bytes(gzip.compress(b"one\\ntwo\\n"))
    ...     with LineReader(file) as lines:
    ...         list(lines)
    [b'one\\n', b'two\\n']
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._stream: IO[bytes]

    def __enter__(self) -> LineReader:
        if not self.path.is_file():
            found = "no regular file" if self.path.exists() else "nothing"
            raise InvalidRankingData(f"{self.path}: expected a file of lines, found {found}")
        opener: Any = _OPENERS.get(self.path.suffix, open)
        self._stream = opener(self.path, "rb")
        return self

    def __exit__(self, *error: object) -> None:
        self._stream.close()

    def read(self, size: int = -1) -> bytes:
        """Return bytes. scikit-learn treats objects with ``read`` as open files and iterates over their lines."""
        return self._stream.read(size)

    def __iter__(self) -> Iterator[bytes]:
        total, most = 0, self._most()
        while line := self._stream.readline(_LONGEST_LINE):
            total += len(line)
            if len(line) == _LONGEST_LINE:
                raise InvalidRankingData(
                    f"{self.path}: expected lines shorter than {_LONGEST_LINE:,} bytes, found a longer one"
                )
            if most is not None and total > most:
                raise InvalidRankingData(
                    f"{self.path}: expected to unpack to at most {_LARGEST_RATIO} times its size, found more; if you "
                    "trust it, unpack it yourself"
                )
            yield line

    def _most(self) -> int | None:
        if self.path.suffix not in _OPENERS:
            return None
        return max(_MOST_UNPACKED, _LARGEST_RATIO * self.path.stat().st_size)
