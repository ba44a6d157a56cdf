"""Checkpoints of ``fit``: the last few, each written whole or not at all, and read without running what is inside."""

from __future__ import annotations

import hashlib
import io
import re
import warnings
from pathlib import Path
from typing import Any

import torch

from stimulus_moo.errors import StateMismatch, StimulusWarning
from stimulus_moo.files import write_whole

KIND = "stimulus-moo checkpoint"
VERSION = 2
_NAME = re.compile(r"checkpoint-(\d{9,})\.pt")


def files(folder: Path) -> list[Path]:
    """Return the checkpoints of a folder, the newest first."""
    found = [(int(match[1]), path) for path in folder.glob("checkpoint-*.pt") if (match := _NAME.fullmatch(path.name))]
    return [path for _, path in sorted(found, reverse=True)]


def save(folder: Path, state: dict[str, Any], keep: int) -> None:
    """Write a checkpoint beside the older ones, and remove those beyond the last ``keep``."""
    folder.mkdir(parents=True, exist_ok=True)
    inside = io.BytesIO()
    torch.save(state, inside)
    payload = inside.getbuffer()
    outside = {
        "kind": KIND,
        "version": VERSION,
        "sha256": hashlib.sha256(payload).hexdigest(),
        "payload": torch.frombuffer(payload, dtype=torch.uint8),
    }
    write_whole(folder / f"checkpoint-{state['step']:09d}.pt", lambda file: torch.save(outside, file))
    for old in files(folder)[keep:]:
        old.unlink(missing_ok=True)


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
        outside = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise StateMismatch(f"{path} cannot be read as a checkpoint ({_first_line(error)})") from error
    if not isinstance(outside, dict) or outside.get("kind") != KIND:
        raise StateMismatch(f"{path} is not a checkpoint of stimulus-moo")
    if outside.get("version") != VERSION:
        raise StateMismatch(
            f"{path} is a checkpoint of version {outside.get('version')!r}, this library reads {VERSION}"
        )
    payload = outside.get("payload")
    if not isinstance(payload, torch.Tensor) or payload.dtype != torch.uint8 or payload.dim() != 1:
        raise StateMismatch(f"{path} is damaged (it holds no payload)")
    inside = payload.numpy().tobytes()
    if hashlib.sha256(inside).hexdigest() != outside.get("sha256"):
        raise StateMismatch(f"{path} is damaged (its checksum is another one)")
    state = torch.load(io.BytesIO(inside), map_location="cpu", weights_only=True)
    assert isinstance(state, dict)
    return state


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
