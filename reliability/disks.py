"""Test runs on full, read-only or missing disks, and runs that receive a signal: the message, and what remains.

Each fault is injected from inside the run, at the n-th evaluation of its losses, when a checkpoint exists already. Then
the fault is removed, the run is resumed, and it must equal an uninterrupted run.
"""

from __future__ import annotations

import dataclasses
import os
import resource
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from reliability.kills import difference
from stimulus_moo import NotWritten
from stimulus_moo.lab.experiment import Experiment
from stimulus_moo.lab.runs.interrupts import Interrupted
from stimulus_moo.lab.runs.lock import RunLock
from stimulus_moo.lab.runs.runner import run_one
from stimulus_moo.lab.runs.storage import RunError
from stimulus_moo.training import checkpoint

TITLE = "Disks and signals"
TEXT = """
A fault is injected after the first checkpoints of a run and removed again. Then the run is resumed and compared with an
uninterrupted one. "Disk full" is a file system of 4 MB, filled until the given number of bytes is left. "Directory
removed" means that the directory is moved away.
"""
COLUMNS = ("fault", "what is said", "exit code", "checkpoints whole", "resumed run equal")

_DISK = 4 << 20
_NOBODY = 65534
AT = 60  # evaluations of the losses before a fault is injected

#: a fault: maps a folder to a context for the run, which yields the function that injects the fault, and removes it
Fault = Callable[[Path], AbstractContextManager[Callable[[], Any]]]


class CannotMount(Exception):
    """This machine does not allow mounting a small file system."""


@contextmanager
def small_disk(folder: Path) -> Iterator[None]:
    """Mount a file system of 4 MB on a folder."""
    command = ["mount", "-t", "tmpfs", "-o", f"size={_DISK}", "tmpfs", str(folder)]
    try:
        found = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise CannotMount(str(error)) from error
    if found.returncode:
        raise CannotMount(found.stderr.strip())
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def full(left: int) -> Fault:
    """A disk that fills up until ``left`` bytes are free."""

    @contextmanager
    def fault(folder: Path) -> Iterator[Callable[[], Any]]:
        filler = folder / "filler"

        def strike() -> None:
            system = os.statvfs(folder)
            filler.write_bytes(bytes(max(0, system.f_bavail * system.f_frsize - left)))

        yield strike
        filler.unlink()

    return fault


@contextmanager
def too_long(folder: Path) -> Iterator[Callable[[], Any]]:
    """Limit files to one kilobyte, as a disk quota does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        yield lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1024, hard))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@contextmanager
def read_only(folder: Path) -> Iterator[Callable[[], Any]]:
    """Make the directory read-only; root, who can always write, switches to another user."""
    user, run = os.geteuid(), folder / "run"

    def strike() -> None:
        run.chmod(0o555)
        if user == 0:
            os.seteuid(_NOBODY)

    try:
        yield strike
    finally:
        os.seteuid(user)
        run.chmod(0o755)


@contextmanager
def removed(folder: Path) -> Iterator[Callable[[], Any]]:
    """Move the directory away."""
    run = folder / "run"
    yield lambda: run.rename(folder / "elsewhere")
    (folder / "elsewhere").rename(run)


def signalled(number: signal.Signals) -> Fault:
    """A signal asks the run to stop."""

    @contextmanager
    def fault(folder: Path) -> Iterator[Callable[[], Any]]:
        yield lambda: signal.raise_signal(number)

    return fault


FAULTS: dict[str, Fault] = {
    "disk full, 0 bytes left": full(0),
    "disk full, 4 kB left": full(4 << 10),
    "disk full, 12 kB left": full(12 << 10),
    "file size limited": too_long,
    "read-only directory": read_only,
    "directory removed": removed,
    "Ctrl-C": signalled(signal.SIGINT),
    "SIGTERM": signalled(signal.SIGTERM),
}


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The result of a fault."""

    said: str
    code: int
    whole: int
    differs: list[str]


def outcome(
    name: str, folder: Path, whole: Path, experiment: Experiment, method: str = "stimulus-m", *, at: int = AT
) -> Outcome:
    """Inject a fault into a run in ``folder``, resume it, and compare it with the run in ``whole``.

    Raises:
        CannotMount: the fault needs its own file system and this machine does not provide one.
    """
    place = folder / "run"
    disk = small_disk(folder) if name.startswith("disk") else _nothing()
    with disk:
        with FAULTS[name](folder) as strike:
            said, code = _run(striking(experiment, at, strike), method, place)
        kept = [checkpoint.read(path) for path in checkpoint.files(place)]
        run_one(experiment, method, experiment.settings, 0, place, resume=True, checkpoint_every=3)
        return Outcome(said.replace(str(folder), "DIR"), code, len(kept), difference(place, whole))


def _run(experiment: Experiment, method: str, place: Path) -> tuple[str, int]:
    """Return the last message of a run and the exit code of the command line for it."""
    try:
        run_one(experiment, method, experiment.settings, 0, place, checkpoint_every=3)
    except (NotWritten, RunError) as error:
        return str(error), 2
    except Interrupted as stopped:
        return "everything measured so far is kept; to go on: ...", stopped.code
    return "nothing", 0


def striking(experiment: Experiment, at: int, strike: Callable[[], Any]) -> Experiment:
    """Return the experiment with losses that call ``strike`` when they are evaluated for the ``at``-th time."""

    def build(*given: Any) -> Any:
        problem, calls = experiment.build(*given), 0

        def losses(model: Any, batch: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == at:
                strike()
            return problem.losses(model, batch)

        return dataclasses.replace(problem, losses=losses)

    return dataclasses.replace(experiment, build=build)


@contextmanager
def _nothing() -> Iterator[None]:
    yield


def rows(*, quick: bool = False) -> list[list[object]]:
    """Return one row per fault."""
    from stimulus_moo.lab.experiments import EXPERIMENTS

    digits = EXPERIMENTS["digits"]
    changes = {"steps": 40, "n": 256, "period": 8, "evaluate_every": 8}
    experiment = dataclasses.replace(digits, settings=digits.settings.override(changes))
    found: list[list[object]] = []
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)  # another user must be able to enter it
        whole = Path(name, "whole")
        run_one(experiment, "stimulus-m", experiment.settings, 0, whole)
        for i, fault in enumerate(list(FAULTS)[:: 4 if quick else 1]):
            folder = Path(name, str(i))
            folder.mkdir()
            try:
                o = outcome(fault, folder, whole, experiment)
                found.append([fault, o.said, o.code, o.whole, "no: " + ", ".join(o.differs) if o.differs else "yes"])
            except CannotMount as error:
                found.append([fault, f"not tried: {error}", "", "", ""])
        with RunLock(whole):
            said, code = _run(experiment, "stimulus-m", whole)
        found.append(["a second run in the directory", said.replace(name, "DIR"), code, "", ""])
    return found
