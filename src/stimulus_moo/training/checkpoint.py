"""Checkpoints of ``fit``: plain ``torch.save`` files, written atomically, each with a checksum file beside it."""

import hashlib
import json
import os
import re
import warnings
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import torch

from stimulus_moo.distributed.checkpoint import read_shards, remove_shards, write_shards
from stimulus_moo.errors import InvalidOption, StateMismatch, StimulusWarning
from stimulus_moo.options import positive_integer
from stimulus_moo.training.files import remove_leftovers, write_whole
from stimulus_moo.training.lock import FolderLock

if TYPE_CHECKING:
    from stimulus_moo.training.run import Run

KIND = "stimulus-moo checkpoint"
VERSION = 6
LOCK = ".checkpoints.lock"
_NAME = re.compile(r"checkpoint-(\d{9,})\.pt")


class Checkpoints:
    """The checkpoint folder of a run, with arguments as for ``fit``; without a folder nothing is saved."""

    def __init__(self, folder: str | Path | None, *, every: int, keep: int) -> None:
        self.folder = None if folder is None else Path(folder)
        self.every = positive_integer("checkpoint_every", every)
        self.keep = positive_integer("checkpoint_keep", keep)
        self.saved = 0  # the step of the last checkpoint
        self._lock = None if self.folder is None else FolderLock(self.folder, LOCK)

    def open(self, resume: bool) -> dict[str, Any] | None:
        """Create and lock the folder, and return the newest intact checkpoint in it, or None; ``close`` unlocks it.

        Raises:
            InvalidOption: there is a checkpoint, and ``resume`` is False; or another run uses the folder.
        """
        if self.folder is None or self._lock is None:
            return None
        if self.folder.exists() and not self.folder.is_dir():
            raise InvalidOption(f"checkpoint must be a folder, found the file {str(self.folder)!r}")
        self.folder.mkdir(parents=True, exist_ok=True)
        if not self._lock.acquire():
            raise InvalidOption(
                f"checkpoint must be a folder that no other run uses, found {str(self.folder)!r}, in use by another "
                "process; wait for it, or pass another folder"
            )
        state = load(self.folder)
        if state is not None and not resume:
            raise InvalidOption(
                f"checkpoint must be a folder without checkpoints, found one in {str(self.folder)!r}; pass resume=True "
                "to continue it, or another folder"
            )
        return state

    def accept(self) -> None:
        """Remove the leftovers of a killed process, once it is known that this run continues or starts here."""
        if self.folder is not None:
            sweep(self.folder)

    def close(self) -> None:
        """Unlock the folder."""
        if self._lock is not None:
            self._lock.release()

    def save(self, run: "Run") -> None:
        """Save a run, unless its current step is already saved."""
        if self.folder is not None and self.saved != run.step:
            state = run.state_dict()  # collective: called by all processes
            rest = write_shards(shards_of(_path(self.folder, run.step)), state)
            if run.group.rank == 0:
                save(self.folder, rest, self.keep)
            self.saved = run.step

    def complete(self, state: dict[str, Any], run: "Run") -> dict[str, Any]:
        """Return a checkpoint with the shards of this process; called by all processes."""
        if self.folder is None:
            return state
        found: dict[str, Any] = read_shards(shards_of(_path(self.folder, state["step"])), state, run.model)
        return found


def bounds_in(folder: str | Path | None) -> dict[int, float]:
    """Return the numbers of bounds that the run in a folder was given as shares of a loss's own best."""
    state = None if folder is None else load(Path(folder))
    try:
        found = json.loads(state["settings"]["bounds"] or "{}") if state is not None else {}
        return {int(s): float(number) for s, (_, number) in found.items()}
    except (KeyError, TypeError, ValueError, AttributeError):
        return {}  # the settings are compared later


def files(folder: Path) -> list[Path]:
    """Return the checkpoints of a folder, newest first."""
    found = [(int(match[1]), path) for path in folder.glob("checkpoint-*.pt") if (match := _NAME.fullmatch(path.name))]
    return [path for _, path in sorted(found, reverse=True) if not path.is_dir()]


def shards_of(path: Path) -> Path:
    """Return the folder with the shards of a checkpoint, where the model is split over the processes."""
    return path.with_suffix(".shards")


def _path(folder: Path, step: int) -> Path:
    return folder / f"checkpoint-{step:09d}.pt"


def checksum_file(path: Path) -> Path:
    """Return the path of a checkpoint's checksum file."""
    return path.with_name(path.name + ".sha256")


def save(folder: Path, state: dict[str, Any], keep: int) -> None:
    """Write a checkpoint and its checksum, and remove all but the last ``keep``.

    Raises:
        NotWritten: the disk is full, or the folder is read-only or gone; the older checkpoints are intact.
    """
    path = _path(folder, state["step"])

    def write(file: BinaryIO) -> None:
        archive = _Hashing(file)
        torch.save({"kind": KIND, "version": VERSION, **state}, archive)  # type: ignore[arg-type]
        if archive.error is not None:
            raise archive.error
        line = f"{archive.sha256.hexdigest()}  {path.name}\n".encode()  # the format of sha256sum
        write_whole(checksum_file(path), lambda file: file.write(line))

    write_whole(path, write)
    for old in files(folder)[keep:]:
        old.unlink(missing_ok=True)
        checksum_file(old).unlink(missing_ok=True)
        remove_shards(shards_of(old))


class _Hashing:
    """Hashes a file as it is written, and keeps the first error, which torch would replace by a misleading one."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self.sha256 = file, hashlib.sha256()
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
        """Do nothing; ``write_whole`` flushes the file."""


def sweep(folder: Path) -> None:
    """Remove temporary files of a killed process, and checksum files and shards without a checkpoint; nothing else."""
    remove_leftovers(folder)
    for path in folder.glob("checkpoint-*.shards"):
        checkpoint = path.with_suffix(".pt")
        if _NAME.fullmatch(checkpoint.name) and not path.is_symlink() and not os.path.lexists(checkpoint):
            remove_shards(path)
    for path in folder.glob("checkpoint-*.pt.sha256"):
        checkpoint = path.with_name(path.name.removesuffix(".sha256"))
        ours = _NAME.fullmatch(checkpoint.name) and path.is_file() and not path.is_symlink()
        if ours and not os.path.lexists(checkpoint):
            path.unlink(missing_ok=True)


def load(folder: Path) -> dict[str, Any] | None:
    """Return the newest intact checkpoint, or None if the folder has none; damaged ones are skipped with a warning.

    Raises:
        StateMismatch: there are checkpoints, but none of them can be used.
    """
    problems = []
    for path in files(folder):
        try:
            state = read(path)
        except StateMismatch as error:
            problems.append(str(error))
            continue
        for problem in problems:
            warnings.warn(f"{problem}; continuing from {path.name}", StimulusWarning, stacklevel=4)
        return state
    if problems:
        raise StateMismatch(f"{'; '.join(problems)}; remove {'it' if len(problems) == 1 else 'them'} to start again")
    return None


def read(path: Path) -> dict[str, Any]:
    """Return the state in a checkpoint.

    Raises:
        StateMismatch: the file is damaged, is not a checkpoint or has another version.
    """
    try:
        _check_archive(path)
        state = torch.load(path, map_location="cpu", weights_only=True)
    except StateMismatch:
        raise
    except Exception as error:
        reason = (str(error).strip() or "no message").splitlines()[0]
        raise StateMismatch(f"{path} cannot be read as a checkpoint ({type(error).__name__}: {reason})") from error
    if not isinstance(state, dict) or state.get("kind") != KIND:
        raise StateMismatch(f"{path} is not a checkpoint of stimulus-moo")
    step = state.get("step")
    if not isinstance(step, int) or isinstance(step, bool) or step < 0:
        raise StateMismatch(f"{path} is not a checkpoint of stimulus-moo: its step is {step!r}")
    version = state.get("version")
    if not isinstance(version, int) or version != VERSION:
        raise StateMismatch(f"{path} is a checkpoint of version {version!r}, this library reads {VERSION}")
    return state


def _check_archive(path: Path) -> None:
    """Check a file against its checksum file, or else the archive's own checksums, before torch reads it."""
    expected = checksum_file(path)
    if expected.exists():
        with path.open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != expected.read_text(errors="replace")[:64]:
                raise StateMismatch(f"{path} is damaged (its checksum differs)")
    with zipfile.ZipFile(path) as archive:
        entries = archive.infolist()
        if any(entry.compress_type != zipfile.ZIP_STORED for entry in entries):
            raise ValueError("the archive is compressed, unlike those of torch")
        if sum(entry.file_size for entry in entries) > path.stat().st_size:
            raise ValueError("the archive claims to be larger than its file")
        if not expected.exists() and archive.testzip() is not None:
            raise StateMismatch(f"{path} is damaged (a checksum inside differs)")


def random_states(group: Any) -> dict[str, Any]:
    """Return the global random states of all processes: that of the first, and in ``others`` the rest."""
    state: dict[str, Any] = {"cpu": torch.get_rng_state()}
    if torch.accelerator.is_available():
        module = torch.get_device_module()
        state["accelerator"] = [module.get_rng_state(i) for i in range(torch.accelerator.device_count())]
    first, *others = group.gather(state)
    return {**first, "others": others}


def set_random_state(state: dict[str, Any], rank: int) -> None:
    """Restore the state of a process; one that did not exist when it was saved gets a new random stream."""
    known: list[dict[str, Any]] = [state, *state.get("others", [])]
    if rank >= len(known):
        generator = torch.Generator()
        generator.set_state(state["cpu"])
        seed = int(torch.randint(1 << 62, (), generator=generator)) + rank
        torch.set_rng_state(generator.manual_seed(seed).get_state())
        return
    torch.set_rng_state(known[rank]["cpu"])
    if torch.accelerator.is_available():
        module = torch.get_device_module()
        for i, value in enumerate(known[rank].get("accelerator", [])[: torch.accelerator.device_count()]):
            module.set_rng_state(value, i)  # devices that this machine does not have are ignored
