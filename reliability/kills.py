"""Kill a run repeatedly, resume it, and compare it with an uninterrupted run, bit for bit.

Half of the kills happen at a random moment of a plain ``stimulus-moo run``, half at a random disk operation that is
half completed (``reliability.victim``).
"""

from __future__ import annotations

import json
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from stimulus_moo.training import checkpoint

TITLE = "Kills"
TEXT = """
A run of `digits` with a checkpoint every third step is killed by SIGKILL, resumed and killed again until it completes;
then the next run starts. *At a random moment*: the process is killed from outside, at a random time in the last two
thirds of a run; the first third imports packages. *At a write*: the process is killed at a random disk operation that
is half completed. Every completed run is compared with an uninterrupted one: `metrics.jsonl` byte for byte, every
tensor of the last checkpoint bit for bit, and `summary.json`, each except for the seconds.
"""
COLUMNS = ("kills", "runs", "killed", "half-written files found", "lines lost", "lines doubled", "bytes lost", "equal")
KILLS = 50
STEPS = 40
_SECONDS = re.compile(rb', "seconds": [^,}]+')


def arguments(folder: Path, *more: str) -> list[str]:
    """Return the arguments that start and resume a run."""
    limits = ["--steps", str(STEPS), "--checkpoint-every", "3", "--evaluate-every", "8", "--n", "256", "--period", "8"]
    return ["run", "digits", "--method", "stimulus-m+", "--out", str(folder), "--resume", *limits, *more]


@dataclass
class Toll:
    """Results of a series of kills."""

    kills: int = 0
    runs: int = 0
    half_written: int = 0
    lines_lost: int = 0
    lines_doubled: int = 0
    bytes_lost: int = 0
    unequal: list[str] = field(default_factory=list)

    def add(self, folder: Path, whole: Path) -> None:
        """Compare a completed run with the uninterrupted one."""
        self.runs += 1
        found, wanted = (_SECONDS.sub(b"", path.joinpath("metrics.jsonl").read_bytes()) for path in (folder, whole))
        steps = [json.loads(line)["step"] for line in found.splitlines()]
        self.lines_lost += len(set(range(STEPS)) - set(steps))
        self.lines_doubled += len(steps) - len(set(steps))
        if found != wanted:
            self.unequal.append("metrics.jsonl")
            self.bytes_lost += abs(len(wanted) - len(found)) or sum(a != b for a, b in zip(found, wanted, strict=True))
        self.unequal += difference(folder, whole)


def difference(folder: Path, whole: Path) -> list[str]:
    """Return the entries of the last checkpoint and of the summary that differ between two completed runs."""
    ours, theirs = (checkpoint.read(checkpoint.files(path)[0]) for path in (folder, whole))
    differing = [name for name in theirs if name != "seconds" and not _same(ours.get(name), theirs[name])]
    ours, theirs = (json.loads((path / "summary.json").read_text()) for path in (folder, whole))
    return differing + [name for name in theirs if name != "seconds" and ours.get(name) != theirs[name]]


def _same(a: object, b: object) -> bool:
    if isinstance(b, torch.Tensor):
        return isinstance(a, torch.Tensor) and a.dtype == b.dtype and a.shape == b.shape and _bits(a) == _bits(b)
    if isinstance(b, dict):
        return (
            isinstance(a, dict)
            and a.keys() == b.keys()
            and all(_same(a[key], b[key]) for key in b.keys() - {"seconds"})
        )
    if isinstance(b, list | tuple):
        return type(a) is type(b) and len(a) == len(b) and all(map(_same, a, b))
    return type(a) is type(b) and a == b


def _bits(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes()


def leftovers(folder: Path) -> int:
    """Count incomplete writes of a killed process: temporary files, and a last line without a newline."""
    metrics = folder / "metrics.jsonl"
    cut = metrics.exists() and not metrics.read_bytes().endswith(b"\n") and metrics.stat().st_size > 0
    return len(list(folder.glob(".stimulus-moo-*.tmp"))) + cut


def plain(command: Sequence[str]) -> subprocess.Popen[str]:
    """Start the command line."""
    return _start([sys.executable, "-m", "stimulus_moo", *command])


def sabotaged(strike_at: int, command: Sequence[str]) -> subprocess.Popen[str]:
    """Start the command line so that it kills itself at a disk operation."""
    return _start([sys.executable, "-m", "reliability.victim", str(strike_at), *command])


def _start(command: Sequence[str]) -> subprocess.Popen[str]:
    root = Path(__file__).parents[1]
    return subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def at_random_moments(kills: int, folder: Path, whole: Path, seconds: float, draw: random.Random) -> Toll:
    """Kill a process at moments drawn from the length of an undisturbed run, until so many were killed."""
    toll = Toll()
    place = folder / "moment-0"
    while toll.kills < kills:
        process = plain(arguments(place))
        try:
            said = process.communicate(timeout=draw.uniform(seconds / 3, seconds))  # before that, packages are imported
        except subprocess.TimeoutExpired:
            process.kill()
            said = process.communicate()
        place = _after(process.returncode, said, toll, place, whole)
    finish(place, toll, whole)
    return toll


def at_writes(kills: int, folder: Path, whole: Path, operations: int, draw: random.Random) -> Toll:
    """Kill a process at operations on the disk drawn from those of an undisturbed run, until so many were killed."""
    toll = Toll()
    place = folder / "write-0"
    while toll.kills < kills:
        process = sabotaged(draw.randint(1, operations), arguments(place))
        place = _after(process.wait(), process.communicate(), toll, place, whole)
    finish(place, toll, whole)
    return toll


def _after(code: int, said: Sequence[str], toll: Toll, place: Path, whole: Path) -> Path:
    """Note how a process ended, and return the directory for the next one."""
    if code == -signal.SIGKILL:
        toll.kills += 1
        toll.half_written += leftovers(place)
        return place
    if code:
        raise RuntimeError(f"a resumed run ended with {code}: {said[1][-2000:]}")
    toll.add(place, whole)
    return place.with_name(f"{place.name.partition('-')[0]}-{toll.runs}")


def finish(place: Path, toll: Toll, whole: Path) -> None:
    """Complete the run that was killed last, and compare it too."""
    process = plain(arguments(place))
    _after(process.wait(), process.communicate(), toll, place, whole)


def undisturbed(folder: Path) -> tuple[Path, float, int]:
    """Make an uninterrupted run; return its folder, its duration and its number of disk operations."""
    start = time.monotonic()
    process = sabotaged(0, arguments(folder / "whole"))
    said, wrong = process.communicate()
    if process.returncode:
        raise RuntimeError(f"the undisturbed run ended with {process.returncode}: {wrong[-2000:]}")
    return folder / "whole", time.monotonic() - start, int(said.split()[-1])


def rows(*, quick: bool = False, kills: int | None = None, seed: int = 0) -> list[list[object]]:
    """Return the results of both kinds of kills."""
    total = kills or (6 if quick else KILLS)
    draw = random.Random(seed)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        whole, seconds, operations = undisturbed(folder)
        tolls = {
            "at a random moment": at_random_moments(total - total // 2, folder, whole, seconds, draw),
            "at a write": at_writes(total // 2, folder, whole, operations, draw),
        }
    return [
        [kind, t.runs, t.kills, t.half_written, t.lines_lost, t.lines_doubled, t.bytes_lost, _verdict(t)]
        for kind, t in tolls.items()
    ]


def _verdict(toll: Toll) -> str:
    return "no: " + ", ".join(sorted(set(toll.unequal))) if toll.unequal else "yes"
