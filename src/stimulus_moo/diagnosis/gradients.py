"""Gradients of all losses at one point: their sizes, their angles, and the noise of batches."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from stimulus_moo import Full, MiniBatch, MultiGradient, Weighting


@dataclass(frozen=True)
class Look:
    """What K batches show at one point.

    Attributes:
        losses: mean losses.
        signal: norm of every mean gradient, without the part that noise adds to it.
        noise: standard deviation of a batch's gradient, as a norm.
        zero: share of batches with an exactly zero gradient, for every loss.
        cosines: S x S cosines between mean gradients; NaN where a gradient is zero.
        negative: share of negative cosines between two losses, over batches and pairs; NaN for one loss.
        resolved: whether K batches are enough to tell the mean gradient from noise, for every loss.
    """

    losses: list[float]
    signal: list[float]
    noise: list[float]
    zero: list[float]
    cosines: list[list[float]]
    negative: float
    resolved: list[bool]


class _Recorder(Weighting):
    """A weighting that keeps the Gramians that it is given, NaN where a label is missing, and returns equal weights."""

    def __init__(self) -> None:
        self.gramians: list[Tensor] = []

    def __call__(self, gramian: Tensor) -> Tensor:
        """Record a Gramian."""
        return self.among(gramian, range(len(gramian)))

    def among(self, gramian: Tensor, present: Sequence[int]) -> Tensor:
        """Record a Gramian of which only some rows are known."""
        known = torch.zeros(len(gramian), dtype=torch.bool).index_fill(0, torch.tensor(present), True)
        self.gramians.append(torch.where(known[:, None] & known, gramian.detach().double().cpu(), torch.nan))
        return known.to(gramian) / len(present)


def look(
    model: nn.Module,
    losses: Callable[[Any, Any], Any],
    batches: Sequence[Any],
    *,
    counts: Callable[[Any], Any] | None = None,
    shared: Iterable[Tensor] | None = None,
) -> Look:
    """Evaluate the gradients of all losses on at least two batches. The model's ``grad`` is overwritten.

    With the gradients g_b of K batches and their mean g, the squared noise of a batch is
    K / (K - 1) (mean ||g_b||^2 - ||g||^2), and the squared signal is ||g||^2 - noise^2 / K. For each loss, K counts the
    batches that have a label of it; without any, its figures are NaN.
    """
    options: dict[str, Any] = {"counts": counts, "shared": None if shared is None else list(shared), "check": False}
    single, mean = _Recorder(), _Recorder()
    multigradient = MultiGradient(model, losses, MiniBatch(), single, **options)
    values = torch.stack([multigradient.backward(batch).losses.double() for batch in batches])
    MultiGradient(model, losses, Full(batches), mean, **options).backward()
    each, whole = torch.stack(single.gramians), mean.gramians[0]
    squares, of_batches = whole.diagonal(), each.diagonal(dim1=1, dim2=2)
    count = (~of_batches.isnan()).sum(0)
    noise = ((of_batches.nanmean(0) - squares) * count / (count - 1).clamp(min=1)).clamp(min=0.0)
    signal = (squares - noise / count).clamp(min=0.0)
    return Look(
        losses=values.nanmean(0).tolist(),
        signal=signal.sqrt().tolist(),
        noise=noise.sqrt().tolist(),
        zero=((of_batches == 0).sum(0) / count).tolist(),
        cosines=_cosines(whole).tolist(),
        negative=_negative(each),
        resolved=(signal > noise / count).tolist(),
    )


def _cosines(gramians: Tensor) -> Tensor:
    norms = gramians.diagonal(dim1=-2, dim2=-1).sqrt()
    return gramians / (norms.unsqueeze(-1) * norms.unsqueeze(-2))


def _negative(gramians: Tensor) -> float:
    size = gramians.shape[-1]
    if size < 2:
        return math.nan
    upper = torch.triu_indices(size, size, offset=1)
    pairs = _cosines(gramians)[:, upper[0], upper[1]]
    known = pairs[~pairs.isnan()]
    return float((known < 0).double().mean()) if len(known) else math.nan
