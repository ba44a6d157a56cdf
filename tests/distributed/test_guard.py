"""The guard and the step size without a number: several processes see, and decide, what one does."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from stimulus_moo import fit
from stimulus_moo._engine import store
from tests.distributed.launch import values
from tests.distributed.paths import COLUMNS
from tests.harness import two_heads, two_losses, vector


def train(lr: Any, method: str, shard: bool, staged: bool) -> tuple[Tensor, int, int, int, int]:
    store.STAGED_ENTRIES = 1 << 16 if staged else 0  # a process of its own, or put back below
    model = two_heads()
    result = fit(model, two_losses, COLUMNS, lr=lr, method=method, batch_size=7, period=8, steps=24, shard=shard)
    return vector(model), result.alone, result.shortened, result.taken_back, result.gradients


RUNS: list[tuple[Any, str]] = [(20.0, "stimulus-m"), (20.0, "moco+"), ("auto", "stimulus")]
WAYS = [(False, True), (True, True), (False, False)]  # sharded, staged


def train_all() -> list[Any]:
    """Every run in every way, in processes that are started once."""
    return [train(*run, *way) for run in RUNS for way in WAYS]


def test_two_processes_are_guarded_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "STAGED_ENTRIES", store.STAGED_ENTRIES)  # put back at the end
    alone = {staged: [train(*run, False, staged) for run in RUNS] for staged in (True, False)}
    expected = [alone[staged][k] for k in range(len(RUNS)) for _, staged in WAYS]
    assert all(sum(one[1:4]) > 0 for one in expected[:6])  # the guard had something to do
    for found in values(train_all, 2):
        for end, one in zip(found, expected, strict=True):
            assert torch.allclose(end[0], one[0], rtol=0, atol=1e-9)
            assert end[1:] == one[1:]
