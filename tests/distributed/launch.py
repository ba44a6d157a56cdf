"""Runs a function in several processes that have joined by gloo over the loopback device, and collects what it says."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from stimulus_moo import multigradient

#: what most tests import, so that not every process does: pytest and FSDP2 take longer than a test
PRELOADED = ["torch._dynamo", "pytest", "stimulus_moo.lab.cli", "tests.database", "tests.distributed.sharded_paths"]

PATIENCE = 400.0  # seconds until a test is given up: far more than any needs, also on a busy machine


@dataclass(frozen=True)
class Said:
    """What a process returned or raised; a process that was killed has neither."""

    value: Any = None
    error: str = ""  # the type's name
    message: str = ""
    code: int | None = 0

    def get(self) -> Any:
        assert not self.error, f"{self.error}: {self.message}"
        assert self.code == 0
        return self.value


def launch(function: Callable[..., Any], ranks: int, *arguments: Any, timeout: float = 60.0) -> list[Said]:
    """Call ``function(*arguments)`` in so many joined processes; ``timeout`` is that of their messages, in seconds."""
    context = quick_starter()
    with tempfile.TemporaryDirectory() as folder:
        where = f"file://{folder}/meeting"
        started = []
        for rank in range(ranks):
            ours, theirs = context.Pipe(duplex=False)
            task = pickle.dumps((function, arguments))  # by hand: tensors would be left in shared memory
            process = context.Process(target=_run, args=(theirs, task, rank, ranks, where, timeout))
            process.start()
            theirs.close()
            started.append((process, ours))
        return [_hear(process, ours) for process, ours in started]


def quick_starter() -> Any:
    """Return a context whose processes start with everything slow imported; torch.optim imports torch._dynamo."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    root = Path(__file__).parents[2]
    os.environ["PYTHONPATH"] = f"{root / 'src'}{os.pathsep}{root}"  # the server knows sys.path only after its imports
    return context


def values(function: Callable[..., Any], ranks: int, *arguments: Any, timeout: float = 60.0) -> list[Any]:
    """Return what every process returned; none may have raised."""
    return [said.get() for said in launch(function, ranks, *arguments, timeout=timeout)]


def _run(pipe: Any, task: bytes, rank: int, ranks: int, where: str, timeout: float) -> None:
    function, arguments = pickle.loads(task)
    torch.set_num_threads(1)
    multigradient.LoopCheck = lambda: None  # type: ignore[assignment,misc]  # as tests/conftest.py does
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    warnings.simplefilter("error")
    dist.init_process_group("gloo", init_method=where, rank=rank, world_size=ranks, timeout=timedelta(seconds=timeout))
    dist.barrier()  # a process that ends at once would break the connection another is still making
    try:
        said = Said(function(*arguments))
    except BaseException as error:
        where_from = "".join(traceback.format_exception(error)) if isinstance(error, AssertionError) else ""
        said = Said(error=type(error).__name__, message=f"{error}{where_from}")
    finally:
        with suppress(Exception):  # after a lost process there is nobody to take leave of
            dist.destroy_process_group()
    pipe.send_bytes(pickle.dumps(said))


def _hear(process: Any, pipe: Any) -> Said:
    until = time.monotonic() + PATIENCE
    said = None
    with suppress(EOFError):
        if pipe.poll(PATIENCE):
            said = pickle.loads(pipe.recv_bytes())
    process.join(max(0.0, until - time.monotonic()))
    if process.is_alive():
        process.kill()
        process.join()
        raise AssertionError("a process did not end in time")
    return said if said is not None else Said(code=process.exitcode)
