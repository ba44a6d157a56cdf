"""Weightings for preferences between labels, and for minimum values of their metrics."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from stimulus_moo import (
    Balanced,
    Fixed,
    InvalidOption,
    MinNorm,
    ProjectedDescent,
    Smoothed,
    Weighting,
    min_norm_weights,
)
from stimulus_moo.ranking.checks import index

_MINIMUM = 0.5  # minimum descent rate of violated labels, relative to their steepest common descent


class EpsilonConstraint(Weighting):
    r"""Weighting that modifies another one as little as necessary to improve labels below their floors.

    .. code-block:: text

        V          the violated labels: those whose metric, as last measured, is below its floor
        lambda_0   the weights of the other weighting
        lambda_V   the min-norm weights of the rows in V, and v = ||U^T lambda_V||^2
        lambda     (1 - tau) lambda_0 + tau lambda_V,    tau the least in [0, 1] with  <u^s, d> >= v / 2  for s in V

    Then d = U^T lambda is a descent direction for the loss of every violated label, at least half as steep as their
    steepest common descent direction. It is the direction of lambda_0 if that is steep enough or no label is violated.
    If the violated labels have no common descent direction (v = 0), the floors cannot be met together, and the weights
    keep these labels where they are. This is the switching rule of constrained optimisation (Polyak 1967), with the
    smallest sufficient change.

    The metric may differ from the loss: call ``measure`` regularly with new values, such as the validation NDCG after
    every epoch. V does not change between two measurements.

    Args:
        floors: minimum value of the metric by label, counted from 0. Higher is better.
        weighting: weighting that returns lambda_0.

    >>> import torch
    >>> constraint = EpsilonConstraint({0: 0.7}, Fixed([0.1, 0.9]))
    >>> gramian = torch.tensor([[1.0, -0.5], [-0.5, 1.0]], dtype=torch.float64)
    >>> constraint(gramian).tolist()  # nothing measured yet
    [0.1, 0.9]
    >>> constraint.measure([0.65, 0.8])
    >>> weights = constraint(gramian)
    >>> round(float(gramian[0] @ weights), 12)  # label 0 falls at half the rate of its own gradient
    0.5
    """

    state_names = ("violated", "weighting")

    def __init__(self, floors: Mapping[int, float], weighting: Weighting | None = None) -> None:
        self.floors = {index("a label of floors", label): float(floor) for label, floor in floors.items()}
        self.weighting = MinNorm() if weighting is None else weighting
        if not isinstance(self.weighting, Weighting):
            raise InvalidOption(f"weighting must be a Weighting, whose state can be kept, found {weighting!r}")
        #: Labels below their floors at the last measurement.
        self.violated: list[int] = []

    def measure(self, metrics: Sequence[float]) -> None:
        """Store new values of the metric, one per label."""
        self.violated = [label for label, floor in self.floors.items() if not float(metrics[label]) >= floor]

    def __call__(self, gramian: Tensor) -> Tensor:
        """Return the weights of the other weighting, modified if a label is violated."""
        weights = self.weighting(gramian)
        if not self.violated:
            return weights
        if max(self.violated) >= len(gramian):
            raise InvalidOption(f"floors must name labels below {len(gramian)}, found {max(self.violated)}")
        violated = torch.tensor(self.violated)
        block = gramian[violated][:, violated]
        repair = torch.zeros_like(weights)
        repair[violated] = min_norm_weights(block).to(weights)
        wanted = _MINIMUM * float(repair @ gramian @ repair)
        now, then = (gramian @ weights)[violated], (gramian @ repair)[violated]
        turn = torch.where(now < wanted, (wanted - now) / (then - now), 0.0).max().clamp(0.0, 1.0)
        return (1.0 - turn) * weights + turn * repair


def preferred_weighting(method: str, preference: Sequence[float] | None, labels: int) -> Weighting:
    """Return the weighting of a method, with a preference if given.

    Min-norm methods decrease the loss of an active label s in proportion to ``preference[s]``, ``"auto"`` in proportion
    to ``preference[s]`` times the length of its gradient; scalarisation weights the losses by it.

    Raises:
        InvalidOption: the preference is not one positive number per label, or the method does not support one.

    >>> preferred_weighting("scalarisation", [1, 3], labels=2).weights.tolist()
    [0.25, 0.75]
    """
    shares = None if preference is None else [float(share) for share in preference]
    if shares is not None and (len(shares) != labels or not all(0.0 < share < math.inf for share in shares)):
        raise InvalidOption(f"preference must hold one positive number per label ({labels}), found {preference!r}")
    if method == "auto":
        return Balanced(memory=0.9, preference=shares)
    if method.startswith("moco"):
        if shares is not None:
            raise InvalidOption(
                f"method {method!r} computes its own weights and does not support a preference; use a min-norm or "
                "scalarisation method, or leave preference=None"
            )
        return ProjectedDescent(gamma=0.1)
    if "scalarisation" in method:
        return Fixed(None if shares is None else [share / sum(shares) for share in shares])
    inner = MinNorm(preference=shares)
    return Smoothed(inner, alpha=0.9) if method == "cr-mogm" else inner
