"""Many processes, one trajectory: every method on 2 and 4 processes with unequal shares."""

from __future__ import annotations

import pytest
import torch

from tests.database import METHODS
from tests.distributed.launch import values
from tests.distributed.paths import PERIOD, Path, follow

STEPS = PERIOD + 3  # two anchors, and inner steps after each
NAMES = list(METHODS)


#: sharded on 2 processes: a method for each estimator and each kind of weights
SHARDED = (
    "mgd",
    "smgd",
    "moco",
    "moco+",
    "cr-mogm",
    "stimulus-m",
    "stimulus-m+",
    "page-moo",
    "vr-scalarisation",
    "filtered",
)

#: on 4 processes: an anchor, an adaptive one, a moving average, rows that are forgotten, and halves of a batch
FEW = ("stimulus-m", "stimulus-m+", "moco+", "smgd", "filtered-m")


def runs(ranks: int) -> list[tuple[str, bool]]:
    whole, sharded = (NAMES, SHARDED) if ranks == 2 else (FEW, FEW)
    return [*((name, False) for name in whole), *((name, True) for name in sharded)]


def all_paths(ranks: int) -> dict[tuple[str, bool], Path]:
    return {(name, shard): follow(name, STEPS, shard=shard) for name, shard in runs(ranks)}


@pytest.fixture(scope="module")
def alone() -> dict[str, Path]:
    return {name: follow(name, STEPS) for name in NAMES}


@pytest.mark.parametrize("ranks", [2, 4])
def test_processes_take_the_path_of_one(ranks: int, alone: dict[str, Path]) -> None:
    found = values(all_paths, ranks, ranks)
    for name, shard in runs(ranks):
        for path in (rank[name, shard] for rank in found):
            assert path.counts == alone[name].counts
            assert torch.allclose(path.points, alone[name].points, rtol=0, atol=1e-10)
            assert torch.allclose(path.losses, alone[name].losses, rtol=0, atol=1e-10)
            # the processes agree bit for bit
            assert torch.equal(path.points, found[0][name, shard].points)
            assert torch.equal(path.weights, found[0][name, shard].weights)
