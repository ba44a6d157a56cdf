"""What the figures of a diagnosis mean: one rule per finding, and the advice that follows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

from torch import Tensor

from stimulus_moo.diagnosis.gradients import Look

SCALED = 10.0  # ratio of the largest to the smallest gradient
NOISY = 3.0  # noise of a batch's gradient, divided by the signal
CONFLICT, OPPOSED = -0.1, 0.6  # cosine between two mean gradients; share of negative cosines on single batches
GAIN, ERRORS = 0.02, 2.0  # decrease of the held-out loss that inputs must bring: relative, and in standard errors

PINNED, UNLEARNABLE, DIFFERENT, NOISE, CONFLICTING, ALIGNED = (
    *("pinned", "unlearnable", "scaled", "noisy", "conflicting", "aligned"),
)


@dataclass(frozen=True)
class Finding:
    """One finding.

    Attributes:
        kind: "pinned", "unlearnable", "scaled", "noisy", "conflicting" or "aligned".
        tasks: the losses that it is about, by number.
        text: what was found, with figures.
        advice: what to do.
    """

    kind: str
    tasks: tuple[int, ...]
    text: str
    advice: str


def find(
    names: Sequence[str], looks: Sequence[Look], alone: Sequence[Tensor], without: Sequence[Tensor]
) -> list[Finding]:
    """Return all findings, the most serious first; "aligned" if there is no other.

    Args:
        names: of the losses.
        looks: at points of a training run on the mean loss, the start first.
        alone: held-out losses of models trained on one loss each, one number per batch.
        without: the same of a model trained with shuffled inputs; NaN where that says nothing.
    """
    pinned = _pinned(names, looks)
    still = {s for finding in pinned for s in finding.tasks}
    unlearnable = _unlearnable(names, alone, without, still)
    useful = [s for s in range(len(names)) if s not in still | {s for found in unlearnable for s in found.tasks}]
    others = [*_scaled(names, looks[0], useful), *_noisy(names, looks[0], useful), *_conflicts(names, looks, useful)]
    return [*pinned, *unlearnable, *others] or [_aligned(looks)]


def _pinned(names: Sequence[str], looks: Sequence[Look]) -> list[Finding]:
    shares = [max(one.zero[s] for one in looks) for s in range(len(names))]
    tasks = tuple(s for s, share in enumerate(shares) if share > 0.5)
    if not tasks:
        return []
    listed = ", ".join(f"{names[s]} (on {shares[s]:.0%} of the batches)" for s in tasks)
    return [
        Finding(
            PINNED,
            tasks,
            f"The gradient is exactly zero: {listed}. Min-norm weights put all weight on such a loss; the model stops.",
            "Do not use min-norm weights (SMGD, MGDA, STIMULUS) while this lasts. Check that the loss depends on the "
            "model; leave it out, or add a term that always has a gradient.",
        )
    ]


def _unlearnable(
    names: Sequence[str], alone: Sequence[Tensor], without: Sequence[Tensor], still: set[int]
) -> list[Finding]:
    tasks = tuple(s for s in range(len(names)) if s not in still and _useless(alone[s], without[s]))
    if not tasks:
        return []
    listed = ", ".join(f"{names[s]} ({alone[s].nanmean():.4g} against {without[s].nanmean():.4g})" for s in tasks)
    return [
        Finding(
            UNLEARNABLE,
            tasks,
            f"Trained alone, its held-out loss is not clearly below that of shuffled inputs: {listed}.",
            "In this many steps, the inputs say nothing about these labels. Check the labels and the loss, train "
            "longer (steps=), or leave them out: no weighting helps.",
        )
    ]


def _useless(alone: Tensor, without: Tensor) -> bool:
    """Return whether inputs bring less than 2%, or less than two standard errors over the held-out batches."""
    gains = without - alone
    gains = gains[~gains.isnan()]
    level = without.nanmean()
    if len(gains) < 2 or not level > 0.0:
        return False
    error = gains.std() / math.sqrt(len(gains))
    return bool(gains.mean() < max(GAIN * level, ERRORS * error))


def _scaled(names: Sequence[str], start: Look, useful: Sequence[int]) -> list[Finding]:
    norms = {s: start.signal[s] for s in useful if start.signal[s] > 0.0}
    if len(norms) < 2:
        return []
    small, large = min(norms, key=norms.__getitem__), max(norms, key=norms.__getitem__)
    ratio = norms[large] / norms[small]
    if ratio < SCALED:
        return []
    return [
        Finding(
            DIFFERENT,
            (large, small),
            f"The gradient of {names[large]} is {ratio:.3g} times that of {names[small]}: it dominates a plain sum.",
            "Use balanced weights, as auto does, or divide each loss by its value at the start.",
        )
    ]


def _noisy(names: Sequence[str], start: Look, useful: Sequence[int]) -> list[Finding]:
    ratios = {s: start.noise[s] / start.signal[s] if start.signal[s] else math.inf for s in useful if start.noise[s]}
    tasks = tuple(s for s, ratio in ratios.items() if ratio >= NOISY)
    if not tasks:
        return []
    listed = ", ".join(f"{names[s]} ({ratios[s]:.3g})" for s in tasks)
    return [
        Finding(
            NOISE,
            tasks,
            f"The noise of a batch's gradient is several times the signal, already at the start: {listed}.",
            "Take larger batches, or a method with variance reduction. Weights from single batches are mostly noise: "
            "average them (Balanced(memory=0.9), as auto does).",
        )
    ]


def _conflicts(names: Sequence[str], looks: Sequence[Look], useful: Sequence[int]) -> list[Finding]:
    cosines: dict[tuple[int, int], float] = {}
    for s, r in combinations(useful, 2):
        seen = [one.cosines[s][r] for one in looks if one.resolved[s] and one.resolved[r]]
        lowest = min((value for value in seen if not math.isnan(value)), default=0.0)
        if lowest < CONFLICT:
            cosines[s, r] = lowest
    rate = conflict_rate(looks)
    if not cosines and not rate >= OPPOSED:
        return []
    worst = sorted(cosines, key=cosines.__getitem__)[:3]
    listed = ", ".join(f"{names[s]} and {names[r]} (cosine {cosines[s, r]:.2f})" for s, r in worst)
    pairs = f"{len(cosines)} of {math.comb(len(useful), 2)} pairs of losses have opposed mean gradients"
    return [
        Finding(
            CONFLICTING,
            tuple(sorted({s for pair in cosines for s in pair})) or tuple(useful),
            f"{pairs}{': ' if worst else ''}{listed}; on single batches {rate:.0%} of the cosines are negative.",
            "Multi-objective weights decide who gives way: use auto, name a preference= or bounds=, or trace the "
            "trade-offs with pareto_front.",
        )
    ]


def conflict_rate(looks: Sequence[Look]) -> float:
    """Return the share of negative cosines between two losses, over batches, pairs and points; NaN for one loss."""
    rates = [one.negative for one in looks if not math.isnan(one.negative)]
    return sum(rates) / len(rates) if rates else math.nan


def _aligned(looks: Sequence[Look]) -> Finding:
    rate = conflict_rate(looks)
    share = "" if math.isnan(rate) else f"; on single batches {rate:.0%} of the cosines are negative"
    return Finding(
        ALIGNED,
        (),
        f"The losses do not conflict: no pair of mean gradients is opposed{share}.",
        "Adam on the mean of the losses is enough (method='scalarisation-adam'); multi-objective weights gain little.",
    )
