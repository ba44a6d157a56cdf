"""What one batch at two points shows besides its gradients: smoothness, noise, and whether a step made things worse."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from stimulus_moo._engine.differentiation import Jacobian
from stimulus_moo._engine.norms import sq_norm_of


@dataclass(frozen=True, eq=False)
class Observation:
    """What a step showed of the problem, for the weights lambda of the step before it.

    Entries that could not be observed are None: at an anchor and with one point there is nothing to compare, and noise
    is measured only for estimators that ask for the two halves of a batch.

    Attributes:
        step: t.
        samples, gradients: the cost of the step.
        anchored: whether it was an anchor.
        losses: the S losses at x_t, on the CPU.
        before: the same batch's S losses at x_{t-1}. In both, a loss without a count (``counts=``) is NaN.
        weights: lambda_{t-1}.
        sq_norm: ||d_{t-1}||^2.
        moved: ||x_t - x_{t-1}||.
        change: ||sum_s lambda^s D^s|| with D = grad F_A(x_t) - grad F_A(x_{t-1}).
        change_variance: the variance of that sum, from the two halves of the batch.
        variance: the variance of sum_s lambda^s grad f_A^s(x_t), likewise.
    """

    step: int
    samples: int
    gradients: int
    anchored: bool
    losses: Tensor
    before: Tensor | None = None
    weights: Tensor | None = None
    sq_norm: float | None = None
    moved: float | None = None
    change: float | None = None
    change_variance: float | None = None
    variance: float | None = None

    @property
    def smoothness(self) -> float | None:
        """||sum_s lambda^s D^s|| / ||x_t - x_{t-1}||, a lower bound on L."""
        return None if self.change is None or not self.moved else self.change / self.moved

    @property
    def decrease(self) -> float | None:
        """How far the lambda-weighted loss of the batch fell from x_{t-1} to x_t."""
        if self.before is None or self.weights is None:
            return None
        fall = (self.before - self.losses).double().cpu()
        value = float(self.weights @ fall)
        return float(self.weights @ fall.nan_to_num(0.0)) if math.isnan(value) else value


class Piece(NamedTuple):
    """A part of the step's batch that is evaluated at once."""

    content: Any
    size: int
    fraction: float = 1.0  # of the batch
    half: int = 0  # which half of the batch it belongs to, where it was cut in two
    fraction_of_half: float = 1.0
    counts: Sequence[float] | None = None  # how many of its samples each loss is over; None: all
    scales: Sequence[float] | None = None  # what its losses are multiplied by, 0 for those without a count; None: 1
    noise_scales: Sequence[float] | None = None  # what the scaled gradients are multiplied by for the probe; None: 1
    together: int | None = None  # samples of all processes that differentiate this piece together; None: only its own
    share: float = 1.0  # what its losses are multiplied by, so that the mean over these processes is that over samples

    @property
    def samples(self) -> int:
        """Over how many samples its gradient is the mean."""
        return self.size if self.together is None else self.together


@dataclass(frozen=True)
class WeightedSum:
    """Adds lambda-weighted gradients to vectors while an update takes them in."""

    weights: Sequence[float]
    targets: Sequence[tuple[list[Tensor], float]]

    def add_jacobian(self, jacobian: Jacobian) -> None:
        if jacobian.stacked is not None:
            self.add_stacked(jacobian.stacked)
        for objective, row in enumerate(jacobian.rows):
            self.add_row(objective, row)

    def add_row(self, objective: int, gradients: Sequence[Tensor | None]) -> None:
        if weight := self.weights[objective]:
            for vectors, factor in self.targets:
                pairs = [(v, g) for v, g in zip(vectors, gradients, strict=True) if g is not None]
                if not pairs:
                    return  # it has no count in this piece
                torch._foreach_add_([v for v, _ in pairs], [g for _, g in pairs], alpha=factor * weight)

    def add_one(self, objective: int, i: int, gradient: Tensor) -> None:
        if weight := self.weights[objective]:
            for vectors, factor in self.targets:
                vectors[i].add_(gradient, alpha=factor * weight)

    def add_stacked(self, gradients: Sequence[Tensor | None]) -> None:
        known: dict[tuple[torch.dtype, torch.device], Tensor] = {}  # sent to a device once
        for i, stacked in enumerate(gradients):
            if stacked is not None:
                kind = stacked.dtype, stacked.device
                if kind not in known:
                    known[kind] = torch.tensor(self.weights, dtype=stacked.dtype, device=stacked.device)
                total = torch.tensordot(known[kind], stacked, dims=1)
                for vectors, factor in self.targets:
                    vectors[i].add_(total, alpha=factor)


class Probe:
    """Measures an update while it is made, with at most three vectors of the model's size for the duration of a step.

    ``weights`` are lambda_{t-1}; None before the first step, when all objectives count the same. ``halves`` compares
    the two halves of the batch. Where counts are given, their differences between the halves are part of the noise.
    """

    def __init__(
        self,
        weights: Tensor | None,
        parameters: Sequence[Tensor],
        *,
        halves: bool,
        totals: Callable[[Sequence[float]], Sequence[float]] = list,
    ) -> None:
        self.weights, self.halves = weights, halves
        self._totals = totals  # from sums over this process's parts of the parameters to those over all
        self.change: float | None = None  # ||sum_s lambda^s D^s||
        self.change_variance: float | None = None
        self.variance: float | None = None
        self.two_points = False  # is the batch evaluated at x_{t-1} too?
        self.in_rows = False  # is D the difference of the rows before and after the update?
        self._parameters = parameters
        # change: sum_s lambda^s D^s; split: the same of the first half minus that of the second; noise: sum_s lambda^s
        # g^s of the first half minus that of the second
        self._sums: dict[str, list[Tensor]] = {}

    def begin(self, *, halves: bool) -> None:
        """Allocate the vectors, also for two halves where the batch could be cut."""
        two = self.two_points
        wanted = {"change": two and not self.in_rows, "split": two and halves, "noise": halves}
        like = [(p, torch.promote_types(p.dtype, torch.float32)) for p in self._parameters]
        self._sums = {name: [torch.zeros_like(p, dtype=kind) for p, kind in like] for name in wanted if wanted[name]}

    def side(self, objectives: int, piece: Piece, *, now: bool) -> WeightedSum | None:
        """Return where the gradients of a piece go."""
        point, sign = (1.0 if now else -1.0), (1.0 if piece.half == 0 else -1.0)
        half = sign * piece.fraction_of_half
        factors = {"change": point * piece.fraction, "split": point * half, "noise": half if now else 0.0}
        targets = [(vectors, factors[name]) for name, vectors in self._sums.items() if factors[name]]
        weights = [1.0 / objectives] * objectives if self.weights is None else self.weights.tolist()
        if piece.noise_scales is not None:
            weights = [weight * scale for weight, scale in zip(weights, piece.noise_scales, strict=True)]
        return WeightedSum(weights, targets) if targets else None

    def vectors(self) -> list[Tensor]:
        return [vector for vectors in self._sums.values() for vector in vectors]

    def end(self, sizes: Sequence[int]) -> float:
        """Compute the results, given the sizes of the halves, and free the vectors; return the variance or 0."""
        scale = sizes[0] * sizes[1] / sum(sizes) ** 2 if all(sizes) else 0.0
        names, squares = list(self._sums), [sq_norm_of(vectors) for vectors in self._sums.values()]
        found, self._sums = dict(zip(names, self._totals(squares) if squares else (), strict=True)), {}
        if "change" in found:
            self.change = math.sqrt(found["change"])
        if "split" in found:
            self.change_variance = scale * found["split"]
        if "noise" in found:
            self.variance = scale * found["noise"]
        return self.variance or 0.0
