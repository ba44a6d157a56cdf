"""Many processes, one trajectory: every method of the paper, on 2 and 4 processes with unequal shares."""

from __future__ import annotations

import pytest
import torch

from stimulus_moo import PAPER_METHODS
from tests.distributed.launch import values
from tests.distributed.paths import Path, follow

STEPS = 100
NAMES = PAPER_METHODS


def all_paths() -> dict[tuple[str, bool], Path]:
    return {(name, shard): follow(name, STEPS, shard=shard) for name in NAMES for shard in (False, True)}


@pytest.fixture(scope="module")
def alone() -> dict[str, Path]:
    return {name: follow(name, STEPS) for name in NAMES}


@pytest.mark.parametrize("ranks", [2, 4])
def test_processes_take_the_path_of_one(ranks: int, alone: dict[str, Path]) -> None:
    found = values(all_paths, ranks)
    for name in NAMES:
        for shard in (False, True):
            for path in (rank[name, shard] for rank in found):
                assert path.counts == alone[name].counts
                assert torch.allclose(path.points, alone[name].points, rtol=0, atol=1e-10)
                assert torch.allclose(path.losses, alone[name].losses, rtol=0, atol=1e-10)
                # the processes agree bit for bit
                assert torch.equal(path.points, found[0][name, shard].points)
                assert torch.equal(path.weights, found[0][name, shard].weights)
