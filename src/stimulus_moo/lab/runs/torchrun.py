"""Commands under ``torchrun``: the processes form one group, and the first one writes files and prints."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist

from stimulus_moo import InvalidOption
from stimulus_moo.distributed import find_group

#: Environment variable: seconds after which an unresponsive process counts as lost.
TIMEOUT = "STIMULUS_MOO_TIMEOUT"


def under_torchrun() -> bool:
    """Return whether torchrun, or a launcher with the same variables, started this process."""
    return {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"} <= os.environ.keys()


@contextmanager
def together() -> Iterator[bool]:
    """Join the process group; yields whether this is the first process, which writes files and prints."""
    if not under_torchrun() or dist.is_initialized():
        yield is_first()
        return
    accelerated = torch.cuda.is_available()
    if accelerated:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    store, rank, size = next(dist.rendezvous("env://", timeout=_timeout()))  # type: ignore[attr-defined]
    # torchrun's store survives a restart and still has the addresses of the old processes
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    store = dist.PrefixStore(f"attempt-{attempt}", store)  # type: ignore[attr-defined]
    backend = "nccl" if accelerated else "gloo"
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=_timeout())
    try:
        # wait for all: a process that exits early would break connections that others are still opening
        find_group(None, shard=False).gather(None)
        try:
            yield is_first()
        except SystemExit as end:
            if not end.code:
                find_group(None, shard=False).gather(None)
            raise
        find_group(None, shard=False).gather(None)  # nor may one leave while others still use its connections
    finally:
        dist.destroy_process_group()


def is_first() -> bool:
    """Return whether this process writes files and prints."""
    return find_group(None, shard=False).rank == 0


@contextmanager
def first_alone() -> Iterator[None]:
    """Run the block in the first process before the others, for example a download."""
    group = find_group(None, shard=False)
    if group.rank != 0:
        group.gather(None)
    yield
    if group.rank == 0:
        group.gather(None)


def refuse_torchrun(what: str) -> None:
    """Raise InvalidOption under torchrun, for commands that support one process only."""
    if under_torchrun() and int(os.environ["WORLD_SIZE"]) > 1:
        raise InvalidOption(f"{what} runs in one process: start it without torchrun")


def _timeout() -> timedelta:
    text = os.environ.get(TIMEOUT, "600")
    try:
        return timedelta(seconds=float(text))
    except (ValueError, OverflowError):
        raise InvalidOption(f"{TIMEOUT} must be a number of seconds, found {text!r}") from None
