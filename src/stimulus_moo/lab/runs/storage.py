"""Crash-safe files: written atomically, or appended one line at a time."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from stimulus_moo import StimulusError
from stimulus_moo.errors import DOCS
from stimulus_moo.training.files import not_written, open_for_appending, write_whole


class RunError(StimulusError):
    """A run directory cannot be used. The message names the file and the fix."""

    page = DOCS + "lab.html#a-run-directory"


def plain(value: Any) -> Any:
    """Convert a value to strict JSON types; non-finite numbers become None.

    >>> plain({"a": (1.5, float("nan")), 2: Path("x")})
    {'a': [1.5, None], '2': 'x'}
    """
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, bool | int | str) or value is None:
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if hasattr(value, "tolist"):  # a tensor, an array or one of their scalars
        return plain(value.tolist())
    return str(value)


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically."""
    write_whole(path, lambda file: file.write(text.encode()))


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write a JSON object atomically."""
    write_text(path, json.dumps(plain(value), indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def read_json(path: Path) -> dict[str, Any] | None:
    """Return the JSON object in a file, or None if the file does not exist.

    Raises:
        RunError: the file does not hold a JSON object.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (ValueError, RecursionError) as error:
        raise RunError(f"{path} is damaged ({error}); remove its directory to start again") from None
    except OSError as error:
        raise RunError(f"{path} cannot be read ({error.strerror})") from None
    if not isinstance(value, dict):
        raise RunError(f"{path} is damaged (expected an object, found {type(value).__name__}); remove its directory")
    return value


def read_lines(path: Path) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the JSON objects of a file with one object per line, and one sentence for each damaged line.

    A last line without a newline, left by a crash, counts as damaged. A missing file has no lines.
    """
    try:
        *whole, rest = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        return [], []
    except OSError as error:
        raise RunError(f"{path} cannot be read ({error.strerror})") from None
    records, problems = [], []
    for number, line in enumerate(whole, 1):
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            problems.append(f"{path}, line {number}: damaged ({error})")
            continue
        if isinstance(record, dict):
            records.append(record)
        else:
            problems.append(f"{path}, line {number}: damaged (expected an object, found {type(record).__name__})")
    if rest:
        problems.append(f"{path}, line {len(whole) + 1}: cut off after {len(rest)} bytes")
    return records, problems


def write_lines(path: Path, lines: Iterable[str]) -> None:
    """Write a file of lines atomically."""
    write_text(path, "".join(f"{line}\n" for line in lines))


class Appender:
    """Append-only file. Each line is written with one system call. A symbolic link is replaced, not followed."""

    def __init__(self, path: Path) -> None:
        self._file = open_for_appending(path)
        self.path = path

    def append(self, line: str) -> None:
        """Add a line.

        Raises:
            NotWritten: the write failed, for example on a full disk; a partial line is removed.
        """
        data = f"{line}\n".encode()
        size = os.fstat(self._file).st_size
        with not_written(self.path):
            try:
                written = os.write(self._file, data)
                while written < len(data):
                    written += os.write(self._file, data[written:])
            except OSError:
                os.ftruncate(self._file, size)
                raise

    def sync(self) -> None:
        """Flush all lines to disk."""
        with not_written(self.path):
            os.fsync(self._file)

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)
