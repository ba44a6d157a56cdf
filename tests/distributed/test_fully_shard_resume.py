"""Checkpoints of models that FSDP2 has split: a killed run goes on with any number of processes, also with one."""

from __future__ import annotations

import os
import runpy
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from stimulus_moo import StateMismatch, fit, multigradient
from stimulus_moo._engine.loop_check import LoopCheck
from stimulus_moo.distributed import load_sharded, save_sharded
from tests.database import replaced
from tests.distributed.launch import launch, values
from tests.distributed.paths import COLUMNS, batches, own_share
from tests.distributed.sharded_paths import SOON, build, model_of, whole
from tests.harness import two_losses

STEPS, EVERY, KILLED = 16, 4, 10
#: a method with a state in every part: the optimizer, the rate that is found, the estimator, kept weights, the guard
OPTIONS: dict[str, Any] = {"batch_size": 9, "anchor_batch": 7, "steps": STEPS, "progress": False}


def train(folder: str, kill_at: int | None = None) -> Tensor:
    """Train from the last checkpoint; the last process kills itself after the forward pass of a step."""
    model = model_of()
    started, plan = [0], [kill_at]  # lists, so that the losses count as the same when the run goes on

    def losses(model: nn.Module, batch: Any) -> Any:
        found = two_losses(model, batch)
        if started == plan and dist.get_rank() == dist.get_world_size() - 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return found

    def count(told: Any) -> None:
        started[0] = told.step

    where: dict[str, Any] = {"checkpoint": folder, "checkpoint_every": EVERY, "resume": True}
    with replaced(SOON):
        fit(model, losses, COLUMNS, **OPTIONS, **where, callbacks=[count])
    return whole(model)


def test_a_killed_run_of_a_split_model_goes_on_with_any_number_of_processes(tmp_path: Path) -> None:
    expected = train(str(tmp_path / "alone"))
    kept = tmp_path / "killed"
    survivor, victim = launch(train, 2, str(kept), KILLED, timeout=20.0)
    assert victim.code == -signal.SIGKILL
    assert survivor.error
    folders = sorted(path.name for path in kept.glob("checkpoint-*.shards"))
    assert folders == ["checkpoint-000000004.shards", "checkpoint-000000008.shards"]
    for ranks in (0, 1, 2, 4):  # 0: the whole model, in a process on its own
        folder = str(tmp_path / f"on {ranks}")
        shutil.copytree(kept, folder)
        for end in values(train, ranks, folder) if ranks else [train(folder)]:
            assert torch.allclose(end, expected, rtol=0, atol=1e-10), ranks


def save(folder: str) -> Tensor:
    """Save in the middle of one's own loop, and go on."""
    mg, optimizer, _ = build("recursive, adamw, kept")
    model, taken = mg.objective.model, batches(12, own_share())
    for k, batch in enumerate(taken):
        if k == 6:
            parts = {"model": model, "optimizer": optimizer, "mg": mg}
            save_sharded(folder, {name: part.state_dict() for name, part in parts.items()})
        mg.backward(batch)
        optimizer.step()
    return whole(model)


def load(folder: str) -> Tensor:
    mg, optimizer, _ = build("recursive, adamw, kept")
    model, taken = mg.objective.model, batches(12, own_share())
    state = load_sharded(folder, model)
    for name, part in {"model": model, "optimizer": optimizer, "mg": mg}.items():
        part.load_state_dict(state[name])
    for batch in taken[6:]:
        mg.backward(batch)
        optimizer.step()
    return whole(model)


def test_a_loop_of_ones_own_goes_on_with_another_number_of_processes(tmp_path: Path) -> None:
    end = values(save, 2, str(tmp_path))[0]
    for found in (load(str(tmp_path)), *values(load, 4, str(tmp_path))):
        assert torch.allclose(found, end, rtol=0, atol=1e-10)
    next((tmp_path / "shards").glob("*.distcp")).unlink()
    with pytest.raises(StateMismatch, match="incomplete or damaged"):
        load(str(tmp_path))
    with pytest.raises(StateMismatch, match="incomplete or damaged"):
        load_sharded(tmp_path / "nothing", model_of())


def example(folder: str, steps: int, resume: bool) -> list[Any]:
    """Run the example as torchrun does; what the first step's check finds would be an error."""
    multigradient.LoopCheck = LoopCheck  # type: ignore[misc]
    path = Path(__file__).parents[2] / "examples" / "fsdp.py"
    found: dict[str, Any] = runpy.run_path(str(path), run_name="example")["main"](steps, Path(folder), resume)
    return [found["held"], *found["history"]]


def test_the_example_goes_on_with_another_number_of_processes(tmp_path: Path) -> None:
    (whole_model, *expected), *_ = values(example, 1, str(tmp_path / "one"), 8, False)
    ranks = values(example, 2, str(tmp_path / "two"), 4, False)
    (_, *last), *_ = values(example, 1, str(tmp_path / "two"), 4, True)
    assert sum(held for held, *_ in ranks) == whole_model
    assert max(held for held, *_ in ranks) < 0.51 * whole_model
    for one, other in zip([*ranks[0][1:], *last], expected, strict=True):
        assert one == pytest.approx(other, rel=1e-3)  # in float32
