"""A long run of small steps with checkpoints and callbacks: memory, file handles and time per step over the run."""

from __future__ import annotations

import os
import statistics
import tempfile
import threading
import time
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from stimulus_moo import Progress, fit

TITLE = "Soak"
TEXT = """
`fit` on a small model, spread evenly over the given minutes, with a checkpoint every 500 steps, an evaluation every
1,000 steps and a callback at every step. "At first" is the median over the second tenth of the run, "at last" the
largest value of the last tenth. The time of a step is processor time, the median over a tenth of the steps. The speed
of a processor depends on the other load of the machine, so the change of the time is measured in units of a fixed
workload: a plain forward and backward pass of a separate model, timed after every tenth step.
"""
COLUMNS = ("what", "at first", "at last", "change", "bar", "met")
STEPS, MINUTES = 100_000, 30.0
_SAMPLES = 1000  # samples of the process
_EVERY = 10  # steps between two measurements of the fixed workload


@dataclass
class Watcher:
    """The callback that samples the process and spreads the steps over the time."""

    steps: int
    seconds: float
    looks: list[tuple[int, int, int]] = field(default_factory=list)  # memory in kB, file handles, threads

    def __post_init__(self) -> None:
        self.cpu = array("d", bytes(8 * self.steps))  # allocated in advance, so that the watcher does not grow
        self.fixed = array("d", bytes(8 * (self.steps // _EVERY)))
        self._model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 2))
        self._batch = torch.ones(16, 8), torch.ones(16, 2)
        self._start = time.monotonic()
        self._mark = time.thread_time()

    def __call__(self, told: Progress) -> None:
        self.cpu[told.step - 1] = time.thread_time() - self._mark
        if told.step % _EVERY == 0:
            begin = time.thread_time()
            with torch.enable_grad():
                torch.autograd.grad(losses(self._model, self._batch).sum(), list(self._model.parameters()))
            self.fixed[told.step // _EVERY - 1] = time.thread_time() - begin
        if told.step % max(1, self.steps // _SAMPLES) == 0:
            self.looks.append((memory(), len(os.listdir("/proc/self/fd")), threading.active_count()))
        time.sleep(max(0.0, self._start + self.seconds * told.step / self.steps - time.monotonic()))
        self._mark = time.thread_time()


def window(values: Sequence[Any], first: float, last: float) -> Sequence[Any]:
    """Return the values between two fractions of the run."""
    return values[int(len(values) * first) : int(len(values) * last)]


def memory() -> int:
    """Return the resident memory of this process in kB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))


def losses(model: torch.nn.Module, batch: Any) -> torch.Tensor:
    return (model(batch[0]) - batch[1]).square().mean(0)


def watch(steps: int, minutes: float) -> Watcher:
    """Make the run and return its watcher."""
    generator = torch.Generator().manual_seed(0)
    data = torch.randn(256, 8, generator=generator), torch.randn(256, 2, generator=generator)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 2))
    watcher = Watcher(steps, 60.0 * minutes)
    with tempfile.TemporaryDirectory() as folder:
        fit(
            model,
            losses,
            data,
            lr=0.01,
            method="stimulus-m",
            batch_size=16,
            period=16,
            steps=steps,
            evaluate_every=1000,
            checkpoint=folder,
            checkpoint_every=500,
            callbacks=[watcher],
            progress=False,
        )
    return watcher


def rows(*, quick: bool = False, steps: int = STEPS, minutes: float = MINUTES) -> list[list[object]]:
    """Return memory, handles, threads and time per step, with their targets."""
    if quick:
        steps, minutes = 4000, 0.0
    seen = watch(steps, minutes)
    early, late = window(seen.looks, 0.1, 0.2), window(seen.looks, 0.9, 1.0)
    kilobytes, handles, threads = (
        (statistics.median(look[i] for look in early), max(look[i] for look in late)) for i in range(3)
    )
    growth = kilobytes[1] / kilobytes[0] - 1
    parts = ((0.1, 0.2), (0.9, 1.0))
    cpu = [1e6 * statistics.median(window(seen.cpu, *part)) for part in parts]
    fixed = [1e6 * statistics.median(window(seen.fixed, *part)) for part in parts]
    slower = (cpu[1] / fixed[1]) / (cpu[0] / fixed[0]) - 1
    return [
        ["steps, minutes", f"{steps:,}", f"{minutes:g}", "", "", ""],
        [
            "memory",
            f"{kilobytes[0] / 1024:.1f} MB",
            f"{kilobytes[1] / 1024:.1f} MB",
            f"{growth:+.2%}",
            "1%",
            _met(growth <= 0.01),
        ],
        ["file handles", handles[0], handles[1], handles[1] - handles[0], "0", _met(handles[1] <= handles[0])],
        ["threads", threads[0], threads[1], threads[1] - threads[0], "0", _met(threads[1] <= threads[0])],
        [
            "time of a step",
            f"{cpu[0]:.0f} µs, {cpu[0] / fixed[0]:.2f} units",
            f"{cpu[1]:.0f} µs, {cpu[1] / fixed[1]:.2f} units",
            f"{slower:+.1%}",
            "5%",
            _met(slower <= 0.05),
        ],
    ]


def _met(met: bool) -> str:
    return "yes" if met else "no"
