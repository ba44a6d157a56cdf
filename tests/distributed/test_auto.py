"""Whatever is found automatically, several processes find as one does: the period, the weights, the rate, a front."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from stimulus_moo import fit
from stimulus_moo.fronts import pareto_front
from tests.database import replaced
from tests.distributed.launch import values
from tests.distributed.paths import COLUMNS
from tests.distributed.test_kept import SOON
from tests.harness import two_heads, two_losses, vector

RUNS: dict[str, dict[str, Any]] = {
    "hands-free": {},
    "sketch": {"gramian": "sketch"},
    "period": {"method": "stimulus-m", "lr": "auto", "period": "auto"},
    "period of an adaptive anchor": {"method": "stimulus+", "lr": 0.05, "period": "auto", "reweigh": "auto"},
    "filter": {"method": "filtered-m", "lr": "auto", "reweigh": "auto"},
    "filter, sharded": {"method": "filtered", "lr": 0.05, "shard": True},
}


def train_all() -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, options in RUNS.items():
        model, own = two_heads(), options if dist.is_initialized() else {**options, "shard": False}
        with replaced(SOON):
            result = fit(model, two_losses, COLUMNS, batch_size=7, steps=24, epsilon=0.05, **own)
        counts = [result.samples, result.gradients, result.taken_back, result.shortened]
        found[name] = vector(model), counts
    front = pareto_front(two_heads(), two_losses, COLUMNS, points=3, steps=12)
    return {**found, "front": (torch.as_tensor(front.losses), [])}


def test_two_processes_find_what_one_finds() -> None:
    alone = train_all()
    for found in values(train_all, 2):
        for name, (end, counts) in alone.items():
            there, counted = found[name]
            assert counted == counts, name
            assert torch.allclose(there, end, rtol=0, atol=1e-9), name
