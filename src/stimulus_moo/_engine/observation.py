"""What one batch at two points shows besides its gradients: smoothness, noise, and whether a step made things worse."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from stimulus_moo._engine.differentiation import Jacobian


@dataclass(frozen=True, eq=False)
class Observation:
    """What a step saw of the problem on its way, for the weights lambda of the step before it.

    What could not be seen is None: at an anchor and with one point there is nothing to compare, and noise is seen only
    by estimators that ask for a batch's two halves.

    Attributes:
        step: t.
        samples, gradients: what the step cost.
        anchored: whether it was an anchor.
        losses: the S losses at x_t.
        before: the same batch's S losses at x_{t-1}.
        weights: lambda_{t-1}.
        sq_norm: ||d_{t-1}||^2.
        moved: ||x_t - x_{t-1}||.
        change: ||sum_s lambda^s D^s|| with D = grad F_A(x_t) - grad F_A(x_{t-1}).
        retries: how often the step to x_t was taken back and shortened before this one.
        change_variance: the variance of that sum, from the two halves of the batch.
        variance: of sum_s lambda^s grad f_A^s(x_t), likewise.
    """

    step: int
    samples: int
    gradients: int
    anchored: bool
    losses: Tensor
    retries: int = 0
    before: Tensor | None = None
    weights: Tensor | None = None
    sq_norm: float | None = None
    moved: float | None = None
    change: float | None = None
    change_variance: float | None = None
    variance: float | None = None

    @property
    def smoothness(self) -> float | None:
        """||sum_s lambda^s D^s|| / ||x_t - x_{t-1}||, a lower bound on L; None where it was not seen."""
        return None if self.change is None or not self.moved else self.change / self.moved

    @property
    def decrease(self) -> float | None:
        """How far the lambda-weighted loss of the batch fell on the way from x_{t-1}; None where it was not seen."""
        if self.before is None or self.weights is None:
            return None
        return float(self.weights @ (self.before - self.losses).double().cpu())


class WeightedSum:
    """Adds lambda-weighted gradients to some vectors while an update takes them in."""

    def __init__(self, weights: Sequence[float], targets: Sequence[tuple[list[Tensor], float]]) -> None:
        self.weights = weights
        self.targets = targets

    def add_jacobian(self, jacobian: Jacobian) -> None:
        """Add the gradients of all losses."""
        if jacobian.stacked:
            self.add_stacked(cast(Sequence[Tensor | None], jacobian.gradients))
            return
        for objective, row in enumerate(cast(Sequence[Sequence[Tensor | None]], jacobian.gradients)):
            self.add_row(objective, row)

    def add_row(self, objective: int, gradients: Sequence[Tensor | None]) -> None:
        """Take one objective's gradients, one per parameter or None."""
        weight = self.weights[objective]
        if weight:
            for vectors, factor in self.targets:
                pairs = [(v, g) for v, g in zip(vectors, gradients, strict=True) if g is not None]
                torch._foreach_add_([v for v, _ in pairs], [g for _, g in pairs], alpha=factor * weight)

    def add_one(self, objective: int, i: int, gradient: Tensor) -> None:
        """Take one objective's gradient for one parameter."""
        weight = self.weights[objective]
        if weight:
            for vectors, factor in self.targets:
                vectors[i].add_(gradient, alpha=factor * weight)

    def add_stacked(self, gradients: Sequence[Tensor | None]) -> None:
        """Take every objective's gradients, [S, *shape] per parameter or None."""
        for i, stacked in enumerate(gradients):
            if stacked is not None:
                weights = torch.tensor(self.weights, dtype=stacked.dtype, device=stacked.device)
                total = torch.tensordot(weights, stacked, dims=1)
                for vectors, factor in self.targets:
                    vectors[i].add_(total, alpha=factor)


class Probe:
    """Looks on while an update is made: at most three vectors of the model's size, for the time of a step.

    Args:
        weights: lambda_{t-1}; None before the first step, when all objectives count the same.
        parameters: of the model.
        halves: compare the two halves of the batch.
    """

    def __init__(self, weights: Tensor | None, parameters: Sequence[Tensor], *, halves: bool) -> None:
        self.weights = weights
        self.halves = halves
        self.change: float | None = None  # ||sum_s lambda^s D^s||
        self.change_variance: float | None = None
        self.variance: float | None = None
        self.two_points = False  # is the batch evaluated at x_{t-1} too?
        self.in_rows = False  # can D be had from the rows before and after the update?
        self._parameters = parameters
        self._change: list[Tensor] | None = None  # sum_s lambda^s D^s
        self._split: list[Tensor] | None = None  # the same of the first half less that of the second
        self._noise: list[Tensor] | None = None  # sum_s lambda^s g^s of the first half less that of the second

    def begin(self, *, halves: bool) -> None:
        """Make room, also for two halves where the batch could be cut."""
        self._change = self._zeros() if self.two_points and not self.in_rows else None
        self._noise = self._zeros() if halves else None
        self._split = self._zeros() if halves and self.two_points else None

    def side(self, objectives: int, *, now: bool, half: int, of_half: float, of_all: float) -> WeightedSum | None:
        """Return where the gradients of a piece go, given its share of its half and of the batch."""
        point, sign = (1.0 if now else -1.0), (1.0 if half == 0 else -1.0)
        targets = []
        if self._change is not None:
            targets.append((self._change, point * of_all))
        if self._split is not None:
            targets.append((self._split, point * sign * of_half))
        if self._noise is not None and now:
            targets.append((self._noise, sign * of_half))
        if not targets:
            return None
        return WeightedSum([1.0 / objectives] * objectives if self.weights is None else self.weights.tolist(), targets)

    def vectors(self) -> list[Tensor]:
        """Return what is being added up."""
        return [vector for vectors in (self._change, self._split, self._noise) for vector in vectors or ()]

    def end(self, sizes: Sequence[int]) -> float:
        """Sum up, given the sizes of the halves, and let go of the vectors; return the variance, 0 if unknown."""
        scale = sizes[0] * sizes[1] / sum(sizes) ** 2 if all(sizes) else 0.0
        if self._change is not None:
            self.change = length(self._change)
        if self._split is not None:
            self.change_variance = scale * length(self._split) ** 2
        if self._noise is not None:
            self.variance = scale * length(self._noise) ** 2
        self._change = self._split = self._noise = None
        return self.variance or 0.0

    def compare(self, now: Sequence[Tensor | None], before: Sequence[Tensor | None]) -> None:
        """Take sum_s lambda^s D^s from two combinations of rows; None counts as zero."""
        self.change = length([a - b for a, b in zip(now, before, strict=True) if a is not None and b is not None])

    def _zeros(self) -> list[Tensor]:
        return [torch.zeros_like(p, dtype=torch.promote_types(p.dtype, torch.float32)) for p in self._parameters]


def length(vectors: Sequence[Tensor]) -> float:
    """Return the Euclidean norm over all entries of all tensors."""
    if not vectors:
        return 0.0
    norms = torch._foreach_norm(list(vectors), 2, dtype=torch.float64)
    return math.sqrt(sum(float(norm) ** 2 for norm in norms))


def distance(xs: Sequence[Tensor], ys: Sequence[Tensor]) -> float:
    """Return ||x - y||."""
    return length(torch._foreach_sub([x.detach() for x in xs], list(ys)))
