"""The examples for Lightning and Accelerate train the same model in one process and in two."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.distributed.test_faults import ROOT, torchrun

EXAMPLES = {"lightning_manual": "lightning", "accelerate_loop": "accelerate"}


@pytest.mark.parametrize("name", EXAMPLES)
def test_example_trains_the_same_model_in_one_and_two_processes(name: str, tmp_path: Path) -> None:
    pytest.importorskip(EXAMPLES[name])
    script = ROOT / "examples" / f"{name}.py"
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(script), "--out", str(tmp_path / "one.pt")]
    one = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert one.returncode == 0, one.stderr
    two = torchrun(script, "--out", tmp_path / "two.pt")
    assert two.returncode == 0, two.stderr
    for done in (one, two):
        assert "1984 2944" in done.stdout  # 4 epochs of an anchor of 256 and 15 batches of 16, at two points each
    first, second = (torch.load(tmp_path / f"{count}.pt") for count in ("one", "two"))
    assert first.keys() == second.keys()
    for key in first:
        assert torch.allclose(first[key], second[key], rtol=0, atol=1e-4)  # 64 steps in float32
