"""A process that dies or falls silent: the others are told within the timeout, and a restart takes the same path."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from stimulus_moo import MultiGradient, Recursive, fit
from tests.distributed.launch import launch, values
from tests.distributed.paths import COLUMNS
from tests.harness import cut, two_heads, two_losses, vector

ROOT = Path(__file__).parents[2]
STEPS, EVERY, KILLED = 24, 5, 13


def train(folder: str, kill_at: int | None, shard: bool = False) -> Tensor:
    """Train from the last checkpoint; the last process kills itself inside the losses of a step, at x_{t-1}."""
    model = two_heads()
    started, plan = [0], [kill_at]  # lists, so that the losses count as the same when the run goes on

    def losses(model: nn.Module, batch: Any) -> Any:
        if started == plan and dist.get_rank() == dist.get_world_size() - 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return two_losses(model, batch)

    def count(told: Any) -> None:
        started[0] = told.step

    fit(
        model, losses, COLUMNS, method="stimulus-m+", lr=0.05, batch_size=9, period=8, steps=STEPS, anchor_batch=7,
        checkpoint=folder, checkpoint_every=EVERY, resume=True, progress=False, callbacks=[count], shard=shard,
    )  # fmt: skip
    return vector(model)


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> Tensor:
    """The end of an uninterrupted run of one process."""
    return train(str(tmp_path_factory.mktemp("whole")), None)


@pytest.mark.parametrize(("shard", "resumed"), [(False, (3,)), (True, (2, 3))])  # torchrun, below, is the other one
def test_a_killed_run_goes_on_with_any_number_of_processes(
    tmp_path: Path, expected: Tensor, shard: bool, resumed: tuple[int, ...]
) -> None:
    survivor, victim = launch(train, 2, str(tmp_path), KILLED, shard)
    assert victim.code == -signal.SIGKILL
    assert survivor.error == "DistributedError"
    assert f"step {KILLED}" in survivor.message
    kept = {path.name: path.read_bytes() for path in tmp_path.glob("checkpoint-*.pt")}
    assert sorted(kept) == ["checkpoint-000000005.pt", "checkpoint-000000010.pt"]
    assert torch.allclose(train(str(tmp_path), None), expected, rtol=0, atol=1e-10)  # one process instead of two
    for ranks in resumed:
        for path in tmp_path.iterdir():
            path.unlink()
        for name, content in kept.items():
            (tmp_path / name).write_bytes(content)
        for end in values(train, ranks, str(tmp_path), None, shard):
            assert torch.allclose(end, expected, rtol=0, atol=1e-10)


def stall(folder: str, shard: bool) -> tuple[str, str]:
    """One process falls asleep in a step, until the other has noticed."""
    noticed = Path(folder) / f"noticed-{shard}"

    def losses(model: nn.Module, batch: Any) -> Any:
        while mg.t == 2 and dist.get_rank() == 1 and not noticed.exists():
            time.sleep(0.05)
        return two_losses(model, batch)

    mg = MultiGradient(two_heads(), losses, Recursive(cut(COLUMNS, 20), period=4), shard=shard)
    for batch in cut(COLUMNS, 8):
        try:
            mg.backward(batch)
        except Exception as error:
            noticed.touch()
            return type(error).__name__, str(error)
    raise AssertionError("nobody noticed")


@pytest.mark.parametrize("shard", [False, True])
def test_a_silent_process_is_noticed_within_the_timeout(shard: bool, tmp_path: Path) -> None:
    """The sleeper sleeps for as long as nobody notices, so that this ends at all shows that the timeout works."""
    for error, message in values(stall, 2, str(tmp_path), shard, timeout=5.0):
        assert error == "DistributedError"
        assert "step 2" in message


SCRIPT = """
import os, sys, torch
sys.path.insert(0, {root!r})
from stimulus_moo.lab.runs.torchrun import together
from tests.distributed.test_faults import KILLED, train
folder, end, run = sys.argv[1:]
with together() as first:
    killed = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
    found = train(folder, KILLED if killed else None)
    if first:
        torch.save(found, end)
    from stimulus_moo.__main__ import main  # late: the killed processes do without
    from stimulus_moo.lab.cli import arguments
    from tests.lab.fake_lab import catalogue
    arguments.catalogue = catalogue
    sys.argv = ["stimulus-moo", "run", "tiny", "--method", "stimulus", "--steps", "30", "--out", run]
    main()
"""


def torchrun(*arguments: object, ranks: int = 2, restarts: int = 0) -> subprocess.CompletedProcess[str]:
    """Run something under torchrun on this machine."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--local-addr=127.0.0.1",
               f"--nproc-per-node={ranks}", f"--max-restarts={restarts}", *map(str, arguments)]  # fmt: skip
    # a store of its own for every try: torchrun's keeps the addresses of processes that are gone
    own = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    environment = {**os.environ, **own}
    return subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)


def test_torchrun_restarts_a_killed_run_and_runs_the_command_line(tmp_path: Path, expected: Tensor) -> None:
    """In one go: most of the time is the start of the processes."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(root=str(ROOT)))
    done = torchrun(script, tmp_path / "killed", tmp_path / "end.pt", tmp_path / "run", restarts=3)
    assert done.returncode == 0, done.stderr
    assert "SIGKILL" in done.stderr or "exitcode: -9" in done.stderr
    assert torch.allclose(torch.load(tmp_path / "end.pt"), expected, rtol=0, atol=1e-10)
    assert done.stdout.count("kept in") == 1  # one process speaks
    records = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [record["step"] for record in records] == list(range(30))
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    # anchors of 64 at 0, 8, 16, 24 and 26 batches of 8 at two points
    assert (summary["samples"], summary["gradients"]) == (4 * 64 + 26 * 8, 4 * 64 + 26 * 16)
    assert summary["test"] == {"error": [0.25, 0.75]}
