"""Runs that are killed while they write, in small: ``make faults`` kills fifty, at random moments too."""

from __future__ import annotations

import multiprocessing
import random
import signal
from pathlib import Path
from typing import Any

import pytest

from reliability import victim
from reliability.kills import Toll, leftovers
from stimulus_moo.lab import cli_arguments
from stimulus_moo.lab.runner import run_one
from tests.lab import fake_lab

ROUNDS = 8  # kills


def child(strike_at: int, arguments: list[str]) -> None:
    cli_arguments.catalogue = fake_lab.catalogue
    victim.main([str(strike_at), *arguments])


@pytest.fixture(scope="module")
def processes() -> Any:
    """Processes that start with everything imported."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["stimulus_moo.lab.cli", "torch._dynamo", __name__])
    return context


def test_runs_killed_while_they_write_lose_nothing(processes: Any, tmp_path: Path) -> None:
    method, whole = "stimulus-m+", tmp_path / "whole"
    run_one(fake_lab.TINY, method, fake_lab.TINY.settings, 0, whole)
    draw, toll, place = random.Random(1), Toll(), tmp_path / "run-0"
    while toll.kills < ROUNDS or (place / "settings.json").exists():
        strike_at = draw.randint(1, 80) if toll.kills < ROUNDS else 0
        arguments = ["run", "tiny", "--method", method, "--out", str(place), "--checkpoint-every", "3", "--resume"]
        process = processes.Process(target=child, args=(strike_at, arguments))
        process.start()
        process.join(60)
        if process.exitcode == -signal.SIGKILL:
            toll.kills += 1
            toll.half_written += leftovers(place)
        else:
            assert process.exitcode == 0
            toll.add(place, whole)
            place = tmp_path / f"run-{toll.runs}"
    assert toll.kills == ROUNDS
    assert toll.half_written > 0  # some were killed in the middle of a file
    assert (toll.lines_lost, toll.lines_doubled, toll.bytes_lost, toll.unequal) == (0, 0, 0, [])
