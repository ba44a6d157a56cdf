"""Losses over a whole data set without derivatives, and the mean of several models."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from stimulus_moo._engine.loss_names import unpacked
from stimulus_moo.anchors import FullPass
from stimulus_moo.data.batches import leading_size
from stimulus_moo.data.sources import as_source
from stimulus_moo.training.devices import on_device


def mean_losses(
    model: torch.nn.Module, losses: Any, dataset: Any, options: Mapping[str, Any], few: bool = False
) -> list[float]:
    """Return the mean losses over a data set, weighted by size or by ``counts`` of the options of ``fit``.

    The random state is left as it was. ``few``: over the first batch of the pass only.
    """
    source = as_source(dataset, options.get("collate_fn"))
    counts, total, seen, names = options.get("counts"), None, None, None
    losses = on_device(model, losses)
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        for batch in islice(FullPass(source, options.get("anchor_batch", 1024)), 1 if few else None):
            found, names = unpacked(losses(model, batch), names)
            values = [float(value) for value in found]
            own = [float(leading_size(batch))] * len(values) if counts is None else [float(c) for c in counts(batch)]
            total = [0.0] * len(values) if total is None else total
            seen = [0.0] * len(values) if seen is None else seen
            total = [a + c * v if c else a for a, c, v in zip(total, own, values, strict=True)]
            seen = [a + c for a, c in zip(seen, own, strict=True)]
    assert total is not None
    assert seen is not None
    return [a / c if c else 0.0 for a, c in zip(total, seen, strict=True)]


def mean_state(states: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Return the mean of states; entries that are not floating-point numbers are those of the first."""
    return {
        name: torch.stack([state[name] for state in states]).mean(0) if value.is_floating_point() else value
        for name, value in states[0].items()
    }


def moved_state(end: Mapping[str, Tensor], other: Mapping[str, Tensor], share: float) -> dict[str, Tensor]:
    """Return a state moved away from another one by a share of their difference; negative shares are between them."""
    return {
        name: value + share * (value - other[name]) if value.is_floating_point() else value
        for name, value in end.items()
    }


def disturbed(
    state: Mapping[str, Tensor], first: Mapping[str, Tensor], second: Mapping[str, Tensor], share: float, seed: int
) -> dict[str, Tensor]:
    """Return a state plus normal noise, whose norm is a share of the distance of two others."""
    names = [name for name, value in state.items() if value.is_floating_point()]
    distance = math.sqrt(sum(float((first[name] - second[name]).double().square().sum()) for name in names))
    scale = share * distance / math.sqrt(max(1, sum(state[name].numel() for name in names)))
    generator, found = torch.Generator().manual_seed(seed), dict(state)
    for name in names:
        noise = torch.randn(state[name].shape, generator=generator, dtype=torch.float64)
        found[name] = state[name] + scale * noise.to(state[name])
    return found
