"""Models that FSDP2 has split take the path of a whole one, with every estimator, weighting and optimizer."""

from __future__ import annotations

import pytest
import torch

from tests.distributed.launch import values
from tests.distributed.sharded_paths import follow

#: 60 steps on two processes; on four those with a star
LONG = (
    "mini-batch, sgd *",
    "mini-batch, adamw, kept",
    "recursive, heavy ball",
    "recursive, adamw, kept *",
    "adaptive anchor, sgd *",
    "adaptive anchor, heavy ball, kept",
    "storm, adamw *",
    "storm, sgd, kept",
    "tracking, adamw",
    "tracking, heavy ball, kept *",
    "adaptive, adamw, kept *",
    "adaptive, sgd",
)
#: a few steps each: what else there is
SHORT = (
    "storm, adamw, kept, sketch, pieces",
    "adaptive anchor, sgd, kept, sketch",
    "recursive, sgd, shared, pieces",
    "page, sgd, fixed",
    "filtered, adamw, kept",
    "filtered, sgd, pieces",
    "auto period, sgd, kept",
    "recursive, heavy ball, guard, dog",
    "adaptive, adamw, kept, guard, dog",
)
STEPS, FEW = 60, 12


def cases(ranks: int) -> list[tuple[str, int]]:
    if ranks == 2:
        return [*((case, STEPS) for case in LONG if not case.endswith("*")), *((case, FEW) for case in SHORT)]
    return [(case.removesuffix(" *"), STEPS) for case in LONG if case.endswith("*")]


def paths(ranks: int) -> dict[str, tuple[torch.Tensor, torch.Tensor, list[object]]]:
    return {case: follow(case, steps) for case, steps in cases(ranks)}


REPLICATED = "storm, adamw, kept"


def launched(ranks: int) -> tuple[dict[str, tuple[torch.Tensor, torch.Tensor, list[object]]], torch.Tensor | None]:
    """Return the paths, and on four processes also that of two replicas of a model that is split in two."""
    return paths(ranks), follow(REPLICATED, FEW, mesh=(2, 2))[0] if ranks == 4 else None


@pytest.mark.parametrize("ranks", [2, 4])
def test_split_models_take_the_path_of_a_whole_one(ranks: int) -> None:
    alone, results = paths(ranks), values(launched, ranks, ranks)
    found = [split for split, _ in results]
    for case, (points, weights, costs) in alone.items():
        for rank in found:
            there, weighed, counted = rank[case]
            assert counted == costs, case
            assert torch.allclose(there, points, rtol=0, atol=1e-10), case
            assert torch.allclose(weighed, weights, rtol=0, atol=1e-10), case
            assert torch.equal(weighed, found[0][case][1]), case  # the processes agree bit for bit
    adaptive = "adaptive, sgd" if ranks == 2 else "adaptive, adamw, kept"
    assert any(cost[0] for cost in alone[adaptive][2])  # type: ignore[index]  # it has used anchors
    if ranks == 4:
        expected = follow(REPLICATED, FEW)[0]
        for _, points in results:
            assert points is not None
            assert torch.allclose(points, expected, rtol=0, atol=1e-10)
