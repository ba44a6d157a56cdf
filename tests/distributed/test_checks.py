"""The check of the first steps on two processes: an anchor that is not divided is told by all of them."""

from __future__ import annotations

import warnings

import torch
import torch.distributed as dist
from torch import Tensor, nn

from stimulus_moo import MultiGradient, Recursive, multigradient
from stimulus_moo._engine.loop_check import LoopCheck
from tests.distributed.launch import values


def losses(model: nn.Module, x: Tensor) -> Tensor:
    return model(x).square().mean(0)


def told(divided: bool) -> list[str]:
    multigradient.LoopCheck = LoopCheck  # type: ignore[misc]
    x = torch.randn(16, 4, generator=torch.Generator().manual_seed(0))
    part = x[dist.get_rank() :: dist.get_world_size()] if divided else x
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        mg, optimizer = MultiGradient(model, losses, Recursive([part], 2)), torch.optim.SGD(model.parameters(), 0.1)
        for batch in part.split(2)[:3]:
            mg.backward(batch)
            optimizer.step()
    return [str(one.message) for one in said]


def both() -> tuple[list[str], list[str]]:
    return told(divided=True), told(divided=False)


def test_an_anchor_that_is_not_divided_is_told_by_every_process() -> None:
    for divided, undivided in values(both, 2):
        assert divided == []
        (message,) = undivided
        assert message.startswith("every process has evaluated the same anchor")
