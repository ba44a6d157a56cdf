"""Models split by FSDP2: bytes that a rank sends per step, and what it holds, on 1, 2 and 4 ranks.

The measured bytes are compared with the cost model of docs/scale.md, implemented by ``model_bytes``.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from benchmarks import split_memory
from benchmarks.cases import Case, mlp
from benchmarks.distributed import _HEAD, together
from benchmarks.sides import verdict
from stimulus_moo import MiniBatch, MultiGradient, Recursive
from stimulus_moo._engine.rows import Rows
from stimulus_moo._engine.sketch import WIDTH
from stimulus_moo.distributed import group

TITLE = "Models split by FSDP2: bytes and memory"
TEXT = f"""\
Processes on one machine that communicate with gloo over the loopback device. Every layer of the model is split by
`fully_shard`. "Bytes per step" are the bytes that one rank sends, FSDP's collectives included: a ring sends 2 (R-1)/R
times the size of an all-reduce and (R-1)/R times the size of a reduce-scatter or an all-gather. *All rows* and *kept*
are inner STIMULUS steps, at two points; *sketch* is a step of SMGD that solves for weights from the sketch. The model
is that of docs/scale.md. "Held" is what a rank has between two steps, in units of P numbers: parameters, Adam's state,
x_{{t-1}}, and rows with the copy in which the next update is built. Targets (column bar): bytes and what is held within
2% of the model.

{split_memory.TEXT}"""
COLUMNS = ["case", "what", "ranks", "measured", "model", "bar", "met"]

WAYS = ("all rows", "kept", "sketch")


def model_bytes(objectives: int, parameters: int, ranks: int, way: str, item: int = 4) -> float:
    """Return the bytes that one rank sends per step; see docs/scale.md."""
    check, head = 2 * 8 * 4 * (1 + ranks), 2 * 8 * (_HEAD + 2 * objectives)

    def evaluation(rows: int, points: int) -> int:
        passes = points * (parameters + rows * parameters + rows * parameters)  # gathered, gathered again, reduced
        return item * passes + (1 + points) * check + head

    if way == "all rows":
        sent = evaluation(objectives, 2) + 2 * 8 * objectives**2 + 2 * 8
    elif way == "kept":
        sent = evaluation(1, 2) + 2 * 8
    else:
        sketch = 2 * item * objectives * min(WIDTH, parameters)
        sent = evaluation(objectives, 1) + sketch + evaluation(1, 1) + 2 * 8
    return (ranks - 1) / ranks * sent


def model_held(objectives: int, ranks: int, way: str) -> dict[str, float]:
    """Return the numbers that a rank holds between two steps, in units of P."""
    rows = {"all rows": 2 * objectives, "kept": 2, "sketch": 1}[way]
    found = {"parameters": 1, "optimizer": 2, "previous": 0 if way == "sketch" else 1, "rows": rows}
    return {name: number / ranks for name, number in found.items()}


def rows(quick: bool = False) -> list[list[object]]:
    case, counts = (mlp(64, 48, 4, batch=16), (2,)) if quick else (mlp(256, 512, 512, 8, batch=64), (1, 2, 4))
    table: list[list[object]] = []
    for ranks in counts:
        found = together(_count_all, ranks, case, 2 if quick else 10)[0]
        for way in WAYS:
            table += _compared(case, ranks, way, found[way])
    return table + split_memory.rows(quick)


def _compared(case: Case, ranks: int, way: str, found: dict[str, Any]) -> list[list[object]]:
    sent, modelled = found["sent"], model_bytes(case.objectives, case.size, ranks, way)
    within = abs(sent - modelled) <= 0.02 * max(modelled, 1.0)
    ratio = f"{sent / modelled:.4f}" if modelled else "0"
    table: list[list[object]] = [
        [
            case.name,
            f"{way}, bytes per step",
            ranks,
            f"{sent:.0f}",
            f"{modelled:.0f}",
            "within 2%",
            verdict(within, ratio),
        ]
    ]
    for name, expected in model_held(case.objectives, ranks, way).items():
        held = found[name] / case.size
        right = abs(held - expected) <= 0.02 * expected
        what = f"{way}, {name} held"
        table.append(
            [case.name, what, ranks, f"{held:.3f}", f"{expected:.3f}", "within 2%", verdict(right, f"{held:.3f}")]
        )
    return table


# In every process


def _count_all(case: Case, steps: int) -> dict[str, dict[str, Any]]:
    return {way: _count(case, way, steps) for way in WAYS}


def _count(case: Case, way: str, steps: int) -> dict[str, Any]:
    """Return bytes per step, and the numbers that a rank holds."""
    ranks, sent = dist.get_world_size(), 0.0

    def counted(collective: Callable[..., Any], factor: float, place: int) -> Callable[..., Any]:
        def call(*tensors: Tensor, **options: Any) -> Any:
            nonlocal sent
            named = ("output_tensor", "output") if place == 0 else ("input", "input_tensor")
            tensor = (
                tensors[place] if len(tensors) > place else next(options[name] for name in named if name in options)
            )
            sent += factor * (ranks - 1) / ranks * tensor.numel() * tensor.element_size()
            return collective(*tensors, **options)

        return call

    step, mg, optimizer = _step(case, way)
    for _ in range(3):  # the anchor, and messages that are sent once
        step()
    with ExitStack() as changed:
        for module, name, factor, place in (
            (dist, "all_reduce", 2.0, 0),
            (dist, "reduce_scatter_single", 1.0, 1),
            (dist, "all_gather_single", 1.0, 0),
            (group, "_reduce_scatter", 1.0, 1),
            (group, "_all_gather", 1.0, 0),
        ):
            changed.enter_context(mock.patch.object(module, name, counted(getattr(module, name), factor, place)))
        sent = 0.0
        for _ in range(steps):
            step()
        total = sent
    kept = [one for one in (mg.store.rows, mg.store.spare) if isinstance(one, Rows)]
    held = {
        "parameters": mg.objective.parameters,
        "optimizer": [
            value.to_local() for state in optimizer.state.values() for k, value in state.items() if k != "step"
        ],
        "previous": mg.store.previous or [],
        "rows": [block.matrix for one in kept for block in one.blocks],
    }
    return {
        "sent": total / steps,
        **{name: sum(map(Tensor.numel, found)) for name, found in held.items()},
    }


def _step(case: Case, way: str) -> tuple[Callable[[], None], MultiGradient, torch.optim.Optimizer]:
    """Return a step on this rank's share of the batch, of a model whose layers are split."""
    ranks, rank = dist.get_world_size(), dist.get_rank()
    share = tuple(column.tensor_split(ranks)[rank] for column in case.batch)
    model, mesh = case.copy(), init_device_mesh("cpu", (ranks,))
    for layer in [module for module in model.modules() if isinstance(module, nn.Linear)]:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    recursive, options = Recursive([share], period=10**9), {"reweigh": "anchor"} if way == "kept" else {}
    estimator, options = (MiniBatch(), {"gramian": "sketch"}) if way == "sketch" else (recursive, options)
    mg = MultiGradient(model, case.losses, estimator, check=False, **options)  # type: ignore[arg-type]
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-5)

    def step() -> None:
        mg.backward(share)
        optimizer.step()

    return step, mg, optimizer
