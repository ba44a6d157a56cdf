"""Checkpoints of ``fit``: one file, written whole or not at all, read without running anything inside it."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import torch

from stimulus_moo.errors import StateMismatch

FILE = "checkpoint.pt"
VERSION = 1


def save(folder: Path, state: dict[str, Any]) -> None:
    """Write a checkpoint beside the old one, then put it in its place."""
    folder.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(prefix=f".{FILE}.", dir=folder)
    try:
        with os.fdopen(descriptor, "wb") as file:
            torch.save({"version": VERSION, **state}, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, folder / FILE)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def load(folder: Path) -> dict[str, Any] | None:
    """Return the checkpoint of a folder, or None where there is none yet.

    Raises:
        StateMismatch: the file is damaged or of another version.
    """
    path = folder / FILE
    if not path.exists():
        return None
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise StateMismatch(f"{path} cannot be read as a checkpoint ({error}); remove it to start again") from error
    if not isinstance(state, dict) or state.get("version") != VERSION:
        raise StateMismatch(f"{path} is not a checkpoint of version {VERSION}; remove it to start again")
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
