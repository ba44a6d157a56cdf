"""Memory of a process that trains a model split by FSDP2: held between steps, and the peak of a step."""

from __future__ import annotations

import ctypes
import gc
import math
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from benchmarks.distributed import together
from benchmarks.sides import verdict
from stimulus_moo import MultiGradient, Recursive

TEXT = """\
The memory of a rank is what the system counts as resident above what the process had before it built the model, in
units of P numbers: *held* between two steps, and the *peak* of an inner STIMULUS step and Adam's. The model has sixteen
layers of one size, each split on its own. *Plain* is FSDP2 training of the mean loss with Adam. Its peak is 4 P / R
(parameters, gradients, Adam), and about half a P that does not fall: the layer that FSDP has gathered, its message, and
what the process itself takes. The column "model" of *above plain* is the difference on one rank divided by R: what this
library adds must fall as 1/R. Target (column bar): within 10%. The C library gives memory back to the system as soon as
it is freed (its option M_MMAP_THRESHOLD); by default it keeps pieces of up to 32 MB, and then what is resident says
little about what is used.
"""
OBJECTIVES, LAYERS = 4, 16
WAYS = ("plain", "all rows", "kept")
_MMAP_THRESHOLD = -3  # of malloc.h
_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def rows(quick: bool = False) -> list[list[object]]:
    """Return the rows of the table; small sizes are not compared with the model."""
    width, counts = (64, (1,)) if quick else (1024, (1, 2, 4))
    name = f"{LAYERS} layers of {width} x {width}, S = {OBJECTIVES}"
    found = {(ranks, way): together(measure, ranks, way, width)[0] for way in WAYS for ranks in counts}
    table: list[list[object]] = []
    for way in WAYS:
        for ranks in counts:
            held, peak = found[ranks, way]
            table += [[name, f"{way}, held", ranks, f"{held:.2f}", "", "", ""]]
            table += [[name, f"{way}, peak", ranks, f"{peak:.2f}", "", "", ""]]
            if way != "plain":
                above, alone = (found[r, way][1] - found[r, "plain"][1] for r in (ranks, 1))
                met = "" if quick else verdict(math.isclose(above * ranks, alone, rel_tol=0.1), f"{above:.2f}")
                bar = "" if quick else "within 10%"
                model = f"{alone / ranks:.2f}"
                table += [[name, f"{way}, peak above plain", ranks, f"{above:.2f}", model, bar, met]]
    return table


# In every process


def measure(way: str, width: int) -> tuple[float, float]:
    """Return what this rank holds, and the peak of a step, in units of P numbers."""
    ctypes.CDLL(None).mallopt(_MMAP_THRESHOLD, 1 << 16)
    before = _resident("VmRSS")
    step, size = _step(way, width)
    for _ in range(3):
        step()
    gc.collect()
    dist.barrier()
    held = _resident("VmRSS")
    _CLEAR.write_text("5")  # resets the peak
    for _ in range(2):
        step()
    peak = _resident("VmHWM")
    dist.barrier()
    return (held - before) / (4 * size), (peak - before) / (4 * size)


def _step(way: str, width: int) -> tuple[Callable[[], None], int]:
    """Return a step and P."""
    torch.manual_seed(0)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    layers = [nn.Linear(width, width, bias=False) for _ in range(LAYERS)]
    model = nn.Sequential(*(part for layer in layers for part in (layer, nn.Tanh())))
    for layer in layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-5, foreach=False)
    batch = torch.randn(8, width), torch.randn(8, OBJECTIVES)
    if way == "plain":

        def step() -> None:
            optimizer.zero_grad()
            losses(model, batch).mean().backward()
            optimizer.step()

        return step, LAYERS * width**2
    reweigh = "anchor" if way == "kept" else 1
    mg = MultiGradient(model, losses, Recursive([batch], period=10**9), reweigh=reweigh, check=False)

    def ours() -> None:
        mg.backward(batch)
        optimizer.step()

    return ours, LAYERS * width**2


def losses(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return (model(batch[0])[:, :OBJECTIVES] - batch[1]).square().mean(0)


def _resident(entry: str) -> int:
    """Return an entry of the process's status in bytes."""
    lines = _STATUS.read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(entry)) * 1024
