"""Two processes make some steps together: the one test of several processes that is quick."""

from __future__ import annotations

import torch

from tests.distributed.launch import values
from tests.distributed.paths import PERIOD, follow


def test_two_processes_take_the_path_of_one() -> None:
    steps = PERIOD + 2
    alone = follow("stimulus-m", steps)
    for path in values(follow, 2, "stimulus-m", steps):
        assert path.counts == alone.counts
        assert torch.allclose(path.points, alone.points, rtol=0, atol=1e-12)  # sums in another order
