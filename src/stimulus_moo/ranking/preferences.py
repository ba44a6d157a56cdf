"""What a user wants from several labels, as weightings: preferences between them, and floors that must be kept."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from stimulus_moo import Fixed, InvalidOption, MinNorm, ProjectedDescent, Smoothed, Weighting, min_norm_weights
from stimulus_moo.ranking.checks import index

_MINIMUM = 0.5  # the share of the fastest common repair that violated labels are granted at least


class EpsilonConstraint(Weighting):
    r"""Another weighting's weights, turned as far as necessary to repair the labels that are below their floors.

    .. code-block:: text

        V          the violated labels: those whose metric, as last measured, is below its floor
        lambda_0   the weights of the other weighting
        lambda_V   the min-norm weights of the rows in V, and v = ||U^T lambda_V||^2
        lambda     (1 - tau) lambda_0 + tau lambda_V,    tau the least in [0, 1] with  <u^s, d> >= v / 2  for s in V

    So d = U^T lambda is a descent direction for the loss of every violated label, at least half as steep as the
    steepest one they have in common, and it is lambda_0's own direction where that is steep enough or nothing is
    violated. Where the violated labels have no common descent direction left (v = 0) the floors cannot be met
    together, and the weights hold them where they are. This is the switching rule of constrained optimisation
    (Polyak 1967), with the least switch that repairs.

    The metric need not be the loss: call ``measure`` with fresh values from time to time, such as the validation NDCG
    after every epoch. Between two measurements the set V stays.

    Args:
        floors: the least value of the metric, by label, counted from 0. More is better.
        weighting: gives lambda_0.

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
        #: the labels below their floors when last measured
        self.violated: list[int] = []

    def measure(self, metrics: Sequence[float]) -> None:
        """Take note of fresh values, one per label."""
        self.violated = [label for label, floor in self.floors.items() if not float(metrics[label]) >= floor]

    def __call__(self, gramian: Tensor) -> Tensor:
        """Return the other weighting's weights, turned where something is violated."""
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
    """Return the weighting of a method, with a preference if there is one.

    Min-norm methods decrease label s in proportion to ``preference[s]``, where it is active; scalarisation weighs the
    losses by it.

    Raises:
        InvalidOption: the preference is not one positive number per label, or the method knows none.

    >>> preferred_weighting("scalarisation", [1, 3], labels=2).weights.tolist()
    [0.25, 0.75]
    """
    shares = None if preference is None else [float(share) for share in preference]
    if shares is not None and (len(shares) != labels or not all(0.0 < share < math.inf for share in shares)):
        raise InvalidOption(f"preference must hold one positive number per label ({labels}), found {preference!r}")
    if method.startswith("moco"):
        if shares is not None:
            raise InvalidOption(
                f"method {method!r} finds its weights by itself and takes no preference; use a min-norm or "
                "scalarisation method, or leave preference=None"
            )
        return ProjectedDescent(gamma=0.1)
    if "scalarisation" in method:
        return Fixed(None if shares is None else [share / sum(shares) for share in shares])
    inner = MinNorm(preference=shares)
    return Smoothed(inner, alpha=0.9) if method == "cr-mogm" else inner
