"""Lightning, Accelerate and Trainer on two processes: the examples train the model of one, and runs are resumed."""

from __future__ import annotations

import io
import os
import runpy
import sys
import warnings
from contextlib import redirect_stdout
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from tests.distributed.launch import values
from tests.integrations.test_trainers import Ended, accelerate_resumed, hugging_face_resumed, lightning_resumed, same

EXAMPLES = {"lightning_module": "lightning", "accelerate_loop": "accelerate", "huggingface_trainer": "transformers"}
FOLDER = Path(__file__).parents[2] / "examples"


def as_torchrun() -> None:
    """Set what torchrun sets for a process that has joined."""
    rank, size = str(dist.get_rank()), str(dist.get_world_size())
    os.environ.update(RANK=rank, LOCAL_RANK=rank, WORLD_SIZE=size, LOCAL_WORLD_SIZE=size, GROUP_RANK="0")
    os.environ.update(TORCHELASTIC_RUN_ID="test", MASTER_ADDR="127.0.0.1", MASTER_PORT="0")


def run_example(name: str, out: Path) -> str:
    """Run an example as torchrun would, in processes that have joined; return what it prints."""
    if dist.get_world_size() == 1:
        dist.destroy_process_group()  # as a user without torchrun runs it
    else:
        as_torchrun()
    warnings.resetwarnings()  # theirs, not ours
    os.chdir(out.parent)
    sys.argv = [f"{name}.py", "--out", str(out)]
    with redirect_stdout(io.StringIO()) as printed:
        runpy.run_path(str(FOLDER / f"{name}.py"), run_name="__main__")
    return printed.getvalue()


@pytest.mark.parametrize("name", EXAMPLES)
def test_example_trains_the_same_model_in_one_and_two_processes(name: str, tmp_path: Path) -> None:
    pytest.importorskip(EXAMPLES[name])
    for ranks in (1, 2):
        printed = values(run_example, ranks, name, tmp_path / f"{ranks}.pt")
        assert "1984 2944" in printed[0]  # 4 epochs of an anchor of 256 and 15 batches of 16, at two points each
    first, second = (torch.load(tmp_path / f"{ranks}.pt") for ranks in (1, 2))
    assert first.keys() == second.keys()
    for key in first:
        assert torch.allclose(first[key], second[key], rtol=0, atol=1e-4)  # 64 steps in float32


def resume(name: str, folder: Path) -> tuple[Ended, Ended]:
    as_torchrun()
    warnings.resetwarnings()
    if name == "lightning":
        return lightning_resumed(folder, devices=2, strategy="ddp")
    return {"accelerate": accelerate_resumed, "transformers": hugging_face_resumed}[name](folder)


@pytest.mark.parametrize("name", EXAMPLES.values())
def test_a_run_on_two_processes_is_resumed(name: str, tmp_path: Path) -> None:
    pytest.importorskip(name)
    first, second = values(resume, 2, name, tmp_path)
    assert same(*first)
    assert same(*second)
    assert same(first[0], second[0])
