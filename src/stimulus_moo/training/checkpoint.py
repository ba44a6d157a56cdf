"""Checkpoints of ``fit``: the last few, each written whole or not at all, and read without running what is inside."""

from __future__ import annotations

import hashlib
import io
import re
import warnings
import zipfile
from pathlib import Path
from typing import IO, Any, BinaryIO

import torch

from stimulus_moo.errors import StateMismatch, StimulusWarning
from stimulus_moo.training.files import write_whole

KIND = "stimulus-moo checkpoint"
VERSION = 3
_HEADER = re.compile(rb"stimulus-moo checkpoint (\d{1,4}) ([0-9a-f]{64})\n")
_ZIP = b"PK\x03\x04"
_NAME = re.compile(r"checkpoint-(\d{9,})\.pt")


def files(folder: Path) -> list[Path]:
    """Return the checkpoints of a folder, the newest first."""
    found = [(int(match[1]), path) for path in folder.glob("checkpoint-*.pt") if (match := _NAME.fullmatch(path.name))]
    return [path for _, path in sorted(found, reverse=True)]


def save(folder: Path, state: dict[str, Any], keep: int) -> None:
    """Write a checkpoint beside the older ones, and remove those beyond the last ``keep``.

    Raises:
        NotWritten: the folder is full, read-only or gone; the older ones are whole.
    """
    write_whole(folder / f"checkpoint-{state['step']:09d}.pt", lambda file: _write(state, file))
    for old in files(folder)[keep:]:
        old.unlink(missing_ok=True)


class _Hashing:
    """A file that is hashed as it is written, and whose first failure is kept.

    torch would report a full disk as a position that it did not expect.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.sha256 = hashlib.sha256()
        self.error: OSError | None = None

    def write(self, data: Any) -> int:
        self.sha256.update(data)
        try:
            if self.error is None:
                self._file.write(data)
        except OSError as error:
            self.error = error
        return memoryview(data).nbytes

    def flush(self) -> None:
        """Leave it to whoever opened the file."""


def _write(state: dict[str, Any], file: BinaryIO) -> None:
    """Write a line with the version and the checksum, then the state; nothing is held in memory a second time."""
    file.write(_header("0" * 64))
    archive = _Hashing(file)
    torch.save(state, archive)  # type: ignore[arg-type]
    if archive.error is not None:
        raise archive.error
    file.seek(0)
    file.write(_header(archive.sha256.hexdigest()))


def _header(sha256: str) -> bytes:
    return f"{KIND} {VERSION} {sha256}\n".encode()


def sweep(folder: Path) -> None:
    """Remove what a killed process was writing; the checkpoints themselves are whole."""
    for path in folder.glob(".checkpoint-*.pt.*"):
        path.unlink(missing_ok=True)


def load(folder: Path) -> dict[str, Any] | None:
    """Return the newest checkpoint that is whole, or None where there is none yet.

    A damaged or foreign one is passed over for the one before it, with a warning that says so.

    Raises:
        StateMismatch: there are checkpoints, and none of them can be used.
    """
    problems = []
    for path in files(folder):
        try:
            state = read(path)
        except StateMismatch as error:
            problems.append(str(error))
            continue
        for problem in problems:
            warnings.warn(f"{problem}; going on from {path.name}, the one before it", StimulusWarning, stacklevel=4)
        return state
    if problems:
        raise StateMismatch(f"{'; '.join(problems)}; remove {'it' if len(problems) == 1 else 'them'} to start again")
    return None


def read(path: Path) -> dict[str, Any]:
    """Return the state in a checkpoint.

    Raises:
        StateMismatch: the file is damaged, foreign or of another version.
    """
    try:
        with path.open("rb") as file:
            state = _state(path, file)
    except StateMismatch:
        raise
    except Exception as error:
        raise StateMismatch(f"{path} cannot be read as a checkpoint ({_first_line(error)})") from error
    if not isinstance(state, dict) or not isinstance(state.get("step"), int):
        raise StateMismatch(f"{path} holds something else than a run ({type(state).__name__})")
    return state


def _state(path: Path, file: io.BufferedReader) -> Any:
    start = file.readline(len(_header("0" * 64)) + 3)
    found = _HEADER.fullmatch(start)
    if found is None:
        raise StateMismatch(f"{path} is not a checkpoint of stimulus-moo")
    if int(found[1]) != VERSION:
        raise StateMismatch(f"{path} is a checkpoint of version {int(found[1])}, this library reads {VERSION}")
    if hashlib.file_digest(file, "sha256").hexdigest() != found[2].decode():
        raise StateMismatch(f"{path} is damaged (its checksum is another one)")
    return _load(file, len(start))


def _load(file: IO[bytes], start: int) -> Any:
    """Load an archive of ``torch.save`` that unpacks to no more than it is, running nothing that is inside."""
    size = file.seek(0, io.SEEK_END) - start
    with zipfile.ZipFile(file) as archive:
        entries = archive.infolist()
        if any(entry.compress_type != zipfile.ZIP_STORED for entry in entries):
            raise ValueError("a packed archive, which torch does not write")
        if sum(entry.file_size for entry in entries) > size:
            raise ValueError("an archive that claims to hold more than it is long")
    file.seek(start)
    if file.read(len(_ZIP)) != _ZIP:
        raise ValueError("no archive")
    file.seek(start)
    return torch.load(file, map_location="cpu", weights_only=True)


def random_state() -> dict[str, Any]:
    """Return the global random state of the CPU and of every accelerator."""
    state: dict[str, Any] = {"cpu": torch.get_rng_state()}
    if torch.accelerator.is_available():
        module = torch.get_device_module()
        state["accelerator"] = [module.get_rng_state(i) for i in range(torch.accelerator.device_count())]
    return state


def set_random_state(state: dict[str, Any]) -> None:
    """Put a saved random state back; accelerators that are not there are passed over."""
    torch.set_rng_state(state["cpu"])
    if torch.accelerator.is_available():
        module = torch.get_device_module()
        for i, value in enumerate(state.get("accelerator", [])[: torch.accelerator.device_count()]):
            module.set_rng_state(value, i)


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).strip() or 'no message').splitlines()[0]}"
