"""Communication, memory and speed of several processes: bytes per step, rows per rank, step time on two ranks.

The measured bytes are compared with the cost model of docs/scale.md, implemented by ``model_bytes``.
"""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks.cases import Case, lenet, mlp, resnet
from benchmarks.sides import SETTLED, verdict
from benchmarks.timing import Timings, milliseconds
from stimulus_moo import MiniBatch, MultiGradient, Recursive
from stimulus_moo.distributed import group

TITLE = "Several processes: bytes, state and speed"
TEXT = """\
Processes on one machine that communicate with gloo over the loopback device, with one torch thread each. They compute
an inner STIMULUS step (the same batch at two points) with the batch divided among them. "Bytes per step" are the bytes
that one rank sends: every collective that is called is counted, and a ring sends 2 (R-1)/R times the size of an all-
reduce and (R-1)/R times the size of a reduce-scatter or an all-gather. The model is that of docs/scale.md; it depends
on S, P and R only. "On the wire" is what the loopback device has carried, divided by ranks and steps; it includes
packet headers and all other traffic of the machine. "Rows held" is the part of U that a rank stores between two steps,
in units of the S x P matrix, or of P under kept weights. With sharded rows a rank stores a second copy, so that a
failed step can be undone.

The speed-up compares, in alternating blocks of one run, steps of two ranks with steps of one rank on the whole batch.
Each rank has one thread and one core of its own. *Kept* are steps under kept weights, of SMGD (one point) and of
STIMULUS between anchors (two points), *whole* are STIMULUS steps with all rows; *plain DDP* is PyTorch's own data-
parallel step with one backward pass of the mean loss. The column "model" of these rows says how much faster both ranks
are, each on half the batch, at the same time and without a message: what two ranks could reach on this machine if
messages took no time. Targets (column bar): bytes and rows within 2% of the model, and under kept weights a speed-up of
at least 1.5 on the convolutional networks; "out of reach" where not even messages that take no time would do.
"""
COLUMNS = ["case", "what", "ranks", "measured", "model", "on the wire", "bar", "met"]

_KEPT = ("kept, one point", "kept, two points")
_WAYS = ("whole", "sharded", _KEPT[1])
_DDP = "plain DDP, weighted sum"
_FLAGS = 16  # numbers before the row of kept weights
_HEAD = 14  # numbers before the losses in the header of a message


@dataclass(frozen=True)
class Size:
    """The inputs of the cost model: S, P, the entries of U, and the bytes of each entry."""

    objectives: int
    parameters: int
    entries: int
    item: int = 4


def model_bytes(size: Size, ranks: int, way: str) -> float:
    """Return the bytes that one rank sends in an inner step; see docs/scale.md."""
    ring = (ranks - 1) / ranks
    head = (_HEAD + 2 * size.objectives) * 8
    if way == "whole":
        return ring * 2 * (head + size.entries * size.item)
    if way in _KEPT:
        return ring * 2 * (head + (_FLAGS + size.parameters) * size.item)
    weigh = 2 * 8 * size.objectives**2 + size.parameters * size.item  # the Gramian, and the direction
    rounds = 2 * 2 * 4 * 8 + 2 * 4 * 8  # two points, each started with four numbers, and the end
    return ring * (rounds + 2 * head + 2 * size.entries * size.item + weigh)


def model_rows(ranks: int, way: str) -> float:
    """Return the rows that a rank stores between two steps, in units of U: S x P numbers, P under kept weights."""
    return 1.0 / ranks if way == "sharded" else 1.0


def rows(quick: bool = False) -> list[list[object]]:
    cases = [mlp(64, 48, 4, batch=16)] if quick else [lenet(), mlp(256, 512, 512, 8, batch=64)]
    counts = (2,) if quick else (1, 2, 4)
    table: list[list[object]] = []
    for case in cases:
        for ranks in counts:
            for way in _WAYS if ranks > 1 else _WAYS[:1]:
                table += _traffic(case, ranks, way, steps=3 if quick else 20)
    return table + (speeds(mlp(16, 8, 4), blocks=2) if quick else all_speeds())


def all_speeds() -> list[list[object]]:
    """Return the speed-ups of two ranks; bars are for the convolutional networks under kept weights."""
    networks = lenet(), lenet(512), *(resnet(4, width=16, batch=batch) for batch in (32, 128, 256, 512))
    table = [row for case in networks for row in speeds(case, barred=True)]
    return table + speeds(mlp(64, 32, 16, 8, 8))


def speeds(case: Case, *, blocks: int = 15, barred: bool = False) -> list[list[object]]:
    """Return the speed-ups of two ranks on one case."""
    return [_speed(case, way, blocks, barred=barred and way in _KEPT) for way in (*_KEPT, "whole", _DDP)]


def _traffic(case: Case, ranks: int, way: str, steps: int) -> list[list[object]]:
    found = together(_count, ranks, case, way, steps)
    size = Size(case.objectives, case.size, found[0]["entries"])
    sent, modelled = found[0]["sent"], model_bytes(size, ranks, way)
    held, expected = found[0]["held"] / (4 * size.entries), model_rows(ranks, way)
    within = abs(sent - modelled) <= 0.02 * max(modelled, 1.0)
    name = f"{way}, " if ranks > 1 else ""
    return [
        [case.name, f"{name}bytes per step", ranks, f"{sent:.0f}", f"{modelled:.0f}", _wire(found, ranks),
         "within 2%", verdict(within, f"{sent / modelled:.4f}" if modelled else "0")],
        [case.name, f"{name}rows held", ranks, f"{held:.3f}", f"{expected:.3f}", "",
         "within 2%", verdict(abs(held / expected - 1) <= 0.02, f"{held:.3f}")],
    ]  # fmt: skip


def _wire(found: list[dict[str, Any]], ranks: int) -> str:
    wire = found[0]["wire"]
    return "-" if wire is None else f"{wire / ranks:.0f}"


def _speed(case: Case, way: str, blocks: int, *, barred: bool) -> list[object]:
    timings = Timings(together(_time, 2, case, way, blocks, pinned=True)[0])
    ratio, most = timings.ratio("one", "two"), timings.ratio("one", "half")
    figures = f"{milliseconds(timings['two'])} ms against {milliseconds(timings['one'])} ms"
    bar, met = ("at least 1.5", verdict(ratio.median >= 1.5, f"{ratio.median:.2f}")) if barred else ("", "")
    if barred and most.median < 1.5:
        met += ", and out of reach"
    return [case.name, f"{way}, speed-up of two ranks: {ratio}", 2, figures, f"at most {most}", "", bar, met]


# In every process


def _count(case: Case, way: str, steps: int) -> dict[str, Any]:
    """Return the bytes that a rank sends per step, the entries of U, the bytes of its rows, and the device's bytes."""
    sent = 0.0
    ranks = dist.get_world_size()
    ring = (ranks - 1) / ranks

    def counted(collective: Callable[..., Any], factor: float, place: int) -> Callable[..., Any]:
        def call(*tensors: Tensor, **options: Any) -> Any:
            nonlocal sent
            sent += factor * ring * tensors[place].numel() * tensors[place].element_size()
            return collective(*tensors, **options)

        return call

    with ExitStack() as changed:
        step, mg = _step(case, None, way)
        step()  # the anchor, and messages that are sent once
        step()
        for module, name, factor, place in (
            (dist, "all_reduce", 2.0, 0),
            (group, "_reduce_scatter", 1.0, 1),
            (group, "_all_gather", 1.0, 0),
        ):
            changed.enter_context(mock.patch.object(module, name, counted(getattr(module, name), factor, place)))
        _meet()
        sent, before = 0.0, _carried()
        for _ in range(steps):
            step()
        total, after = sent, _carried()
    kept = mg.store.rows
    assert kept is not None
    return {
        "sent": total / steps,
        "entries": sum(mask.bit_count() * p.numel() for mask, p in zip(kept.layout, kept.parameters, strict=True)),
        "held": sum(matrix.numel() * matrix.element_size() for matrix in kept.matrices()),
        "wire": None if before is None or after is None else (after - before) / steps,
    }


def _time(case: Case, way: str, blocks: int) -> dict[str, list[float]]:
    """Return seconds per step, block by block: of two ranks, of the first rank alone, of both without messages."""
    rank = dist.get_rank()
    alone = [dist.new_group([member]) for member in range(dist.get_world_size())][rank]
    make = _plain_step if way == _DDP else _step
    sides = {"two": make(case, None, way)[0], "half": make(case, alone, way, 2)[0]}
    sides["one"] = make(case, alone, way, 1)[0] if rank == 0 else lambda: None
    for step in sides.values():
        for _ in range(SETTLED):
            step()
    _meet()
    start = time.perf_counter()
    sides["two"]()
    repeats = torch.tensor([max(1, int(0.5 / (time.perf_counter() - start)))])
    dist.broadcast(repeats, 0)
    found: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(blocks):
        for name, step in sides.items():
            _meet()
            start = time.perf_counter()
            for _ in range(int(repeats)):
                step()
            found[name].append((time.perf_counter() - start) / int(repeats))
    _meet()
    return found


def _step(case: Case, among: Any, way: str, ranks: int | None = None) -> tuple[Callable[[], None], MultiGradient]:
    """Return a step on this rank's share of the batch, of so many shares; default as many as there are ranks."""
    share, model = _share(case, among, ranks), case.copy()
    estimator = MiniBatch() if way == "kept, one point" else Recursive([share], period=10**9)
    reweigh = {"kept, one point": 10**9, "kept, two points": "anchor"}.get(way, 1)
    mg = MultiGradient(
        model, case.losses, estimator, process_group=among, shard=way == "sharded", reweigh=reweigh, check=False
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)

    def step() -> None:
        mg.backward(share)
        optimizer.step()

    return step, mg


def _plain_step(case: Case, among: Any, way: str, ranks: int | None = None) -> tuple[Callable[[], None], nn.Module]:
    """Return the step that data-parallel training makes: DDP, one backward pass of the mean of the losses, SGD."""
    share, model = _share(case, among, ranks), case.copy()
    called = DistributedDataParallel(model) if among is None else model
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)

    def step() -> None:
        losses = case.losses(called, share)
        (losses.mean() if isinstance(losses, Tensor) else torch.stack(list(losses)).mean()).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step, model


def _share(case: Case, among: Any, ranks: int | None) -> tuple[Tensor, ...]:
    shares, rank = (dist.get_world_size(), dist.get_rank()) if among is None else (1, 0)
    return tuple(column.tensor_split(ranks or shares)[rank] for column in case.batch)


def _meet() -> None:
    dist.barrier()


def _carried() -> int | None:
    """Return how many bytes the loopback device has sent, or None if the system does not report it."""
    try:
        lines = Path("/proc/net/dev").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    return next((int(line.split()[9]) for line in lines if line.split(":")[0].strip() == "lo"), None)


def together(function: Callable[..., Any], ranks: int, *arguments: Any, pinned: bool = False) -> list[Any]:
    """Return the results of a function in each of ``ranks`` joined processes, on request each on its own core."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch._dynamo", "stimulus_moo"])
    queue = context.Queue()
    with tempfile.TemporaryDirectory() as folder:
        where = f"file://{folder}/meeting"
        members = [
            context.Process(target=_member, args=(queue, where, rank, ranks, pinned, function, arguments))
            for rank in range(ranks)
        ]
        for member in members:
            member.start()
        found = dict(queue.get(timeout=600) for _ in members)
        for member in members:
            member.join()
    return [found[rank] for rank in range(ranks)]


def _member(
    queue: Any, where: str, rank: int, ranks: int, pinned: bool, function: Callable[..., Any], arguments: Any
) -> None:
    if pinned:  # before any thread is started: those of gloo share the core of their rank
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[rank % len(cores)]})
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=where, rank=rank, world_size=ranks)
    queue.put((rank, function(*arguments)))
    dist.destroy_process_group()
