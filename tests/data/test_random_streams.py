"""Every purpose of a run has a random stream of its own."""

from __future__ import annotations

from itertools import combinations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from stimulus_moo import AdaptiveBatch
from stimulus_moo.data.partition import ALL
from stimulus_moo.data.random_streams import PURPOSES, permutation, stream_seed
from stimulus_moo.data.sources import BatchPlan, as_source
from stimulus_moo.methods import Settings

N = 400


@given(st.integers(0, (1 << 64) - 1))
def test_no_two_purposes_share_a_stream_for_any_seed(seed: int) -> None:
    """Torch uses 32 bits of a seed, two of which are the purpose; numpy's streams are of another kind."""
    seeds = {stream_seed(seed, purpose) for purpose in PURPOSES}
    assert len({found % (1 << 32) for found in seeds}) == len(PURPOSES) <= 4
    assert all(found < 1 << 32 for found in seeds)
    own = permutation(seed, "batches", 0, 50)
    assert torch.equal(own, permutation(seed, "batches", 0, 50))
    others = [permutation(seed, purpose, index, 50) for purpose in PURPOSES for index in (0, 1, 2)]
    assert not any(torch.equal(a, b) for a, b in combinations(others, 2))


def drawn_by_the_anchor(seed: int) -> torch.Tensor:
    settings = Settings(as_source(torch.arange(N)), lr=0.1, momentum=0.0, batch_size=40, period=10, seed=seed)
    anchor = settings.adaptive()
    assert isinstance(anchor, AdaptiveBatch)
    return anchor.source.shuffled(anchor.generator)


@pytest.mark.parametrize("first", [0, 1, 1000])
def test_first_batches_do_not_lie_in_the_anchor(first: int) -> None:
    """Of 40 samples, 4 lie among the 40 of the anchor on average; with seed 0 all 40 did once."""
    common = []
    for seed in range(first, first + 100):
        plan = BatchPlan(as_source(torch.arange(N)), 40, seed, ALL)
        common.append(len({*plan.at(0).tolist()} & {*drawn_by_the_anchor(seed)[:40].tolist()}))
    assert max(common) < 20
    assert abs(sum(common) / len(common) - 4) < 1  # the standard error is 0.18


def test_runs_with_different_seeds_draw_different_batches() -> None:
    orders = [permutation(seed, "batches", epoch, N) for seed in (0, 1, 1 << 32, 1 << 63) for epoch in range(3)]
    assert not any(torch.equal(a, b) for a, b in combinations(orders, 2))
