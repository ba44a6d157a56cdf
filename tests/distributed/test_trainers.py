"""Lightning, Accelerate and Trainer on two processes: the examples train the model of one, and runs are resumed."""

from __future__ import annotations

import io
import os
import runpy
import sys
import warnings
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.distributed.launch import values
from tests.integrations.test_trainers import Ended, accelerate_resumed, hugging_face_resumed, lightning_resumed, same

EXAMPLES = {"lightning": "lightning_module", "accelerate": "accelerate_loop", "transformers": "huggingface_trainer"}
FOLDER = Path(__file__).parents[2] / "examples"


def run_example(name: str, out: Path) -> str:
    """Run an example as a user does, or torchrun; return what it prints."""
    if dist.get_world_size() == 1:
        dist.destroy_process_group()
        warnings.resetwarnings()
    os.chdir(out.parent)
    sys.argv = [f"{name}.py", "--out", str(out)]
    with redirect_stdout(io.StringIO()) as printed:
        runpy.run_path(str(FOLDER / f"{name}.py"), run_name="__main__")
    return printed.getvalue()


def run_as_torchrun(library: str, folder: Path) -> tuple[str, tuple[Ended, Ended]]:
    """Run with and without a break in processes that have joined, then an example, which may end the group."""
    rank, size = str(dist.get_rank()), str(dist.get_world_size())
    os.environ.update(RANK=rank, LOCAL_RANK=rank, WORLD_SIZE=size, LOCAL_WORLD_SIZE=size, GROUP_RANK="0")
    os.environ.update(TORCHELASTIC_RUN_ID="test", MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
    warnings.resetwarnings()  # theirs, not ours
    if library == "lightning":
        runs = lightning_resumed(folder, devices=2, strategy="ddp")
    else:
        runs = {"accelerate": accelerate_resumed, "transformers": hugging_face_resumed}[library](folder)
    return run_example(EXAMPLES[library], folder / "2.pt"), runs


@pytest.fixture(scope="module", params=EXAMPLES)
def on_two(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path, list[Any]]:
    """A library, a folder, and what its two processes returned; in one launch, since imports take most of the time."""
    pytest.importorskip(request.param)
    folder = tmp_path_factory.mktemp(request.param)
    return request.param, folder, values(run_as_torchrun, 2, request.param, folder)


def test_an_example_trains_the_same_model_in_one_and_two_processes(on_two: tuple[str, Path, list[Any]]) -> None:
    library, folder, returned = on_two
    for printed in (returned[0][0], values(run_example, 1, EXAMPLES[library], folder / "1.pt")[0]):
        assert "1984 2944" in printed  # 4 epochs of an anchor of 256 and 15 batches of 16, at two points each
    first, second = (torch.load(folder / f"{ranks}.pt") for ranks in (1, 2))
    assert first.keys() == second.keys()
    for key in first:
        assert torch.allclose(first[key], second[key], rtol=0, atol=1e-4)  # 64 steps in float32


def test_a_run_on_two_processes_is_resumed(on_two: tuple[str, Path, list[Any]]) -> None:
    (_, (straight, resumed)), (_, (other, other_resumed)) = on_two[2]
    assert same(straight, resumed)
    assert same(other, other_resumed)
    assert same(straight, other)
