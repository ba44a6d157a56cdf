"""Commands under ``torchrun``: the processes join for the time of a command, and the first one writes and speaks."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist

from stimulus_moo import InvalidOption
from stimulus_moo.distributed import find_group

#: seconds after which a silent process counts as lost
TIMEOUT = "STIMULUS_MOO_TIMEOUT"


def under_torchrun() -> bool:
    """Tell whether torchrun, or something that sets the same variables, has started this process among others."""
    return {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"} <= os.environ.keys()


@contextmanager
def together() -> Iterator[bool]:
    """Join the other processes; the value is whether this is the first one, which writes and speaks for all."""
    if not under_torchrun() or dist.is_initialized():
        yield is_first()
        return
    accelerated = torch.cuda.is_available()
    if accelerated:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    store, rank, size = next(dist.rendezvous("env://", timeout=_timeout()))  # type: ignore[attr-defined]
    # torchrun's store lives on through a restart, with the addresses of the processes that are gone
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    store = dist.PrefixStore(f"attempt-{attempt}", store)  # type: ignore[attr-defined]
    backend = "nccl" if accelerated else "gloo"
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=_timeout())
    try:
        # all have joined before any goes on: one that ended at once would break a connection another is still making
        find_group(None, shard=False).gather(None)
        yield is_first()
    finally:
        dist.destroy_process_group()


def is_first() -> bool:
    """Tell whether this process writes and speaks for all."""
    return find_group(None, shard=False).rank == 0


@contextmanager
def first_alone() -> Iterator[None]:
    """Let the first process do something before the others, a download for instance."""
    group = find_group(None, shard=False)
    if group.rank != 0:
        group.gather(None)
    yield
    if group.rank == 0:
        group.gather(None)


def refuse_torchrun(what: str) -> None:
    """Raise InvalidOption under torchrun, for what is made for one process."""
    if under_torchrun() and int(os.environ["WORLD_SIZE"]) > 1:
        raise InvalidOption(f"{what} runs in one process: start it without torchrun")


def _timeout() -> timedelta:
    text = os.environ.get(TIMEOUT, "600")
    try:
        return timedelta(seconds=float(text))
    except (ValueError, OverflowError):
        raise InvalidOption(f"{TIMEOUT} must be a number of seconds, found {text!r}") from None
