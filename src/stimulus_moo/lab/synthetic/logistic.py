"""Logistic regression with a nonconvex regulariser and two conflicting sets of labels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import softplus

from stimulus_moo.lab.problem import Problem
from stimulus_moo.lab.synthetic.point import Point, normal, uniform


def nonconvex_logistic(
    n: int, *, seed: int, dimension: int = 20, decay: float = 1.0, regulariser: float = 1e-3
) -> Problem:
    r"""Return a problem with n samples and two objectives.

    .. code-block:: text

        f_sj(x) = log(1 + exp(-y_sj a_j . x)) + r sum_i x_i^2 / (1 + x_i^2),     ||a_j|| = 1,  y_sj = +-1,  x_0 = 0

    The standard deviations of the features fall by a factor of ``10^decay``. The probability of label s depends on the
    features along a direction w_s; w_1 and w_2 are orthogonal. Directions and spectrum do not depend on n, so problems
    of all sizes are samples of the same population.

    Args:
        n: number of samples.
        seed: seed of features, directions and labels.
        dimension: dimension of x.
        decay: log10 of the largest over the smallest standard deviation of a feature.
        regulariser: the coefficient r.
    """
    generator = torch.Generator().manual_seed(seed)
    directions = torch.linalg.qr(normal(generator, dimension, 2))[0]
    scale = torch.logspace(0.0, -decay, dimension, dtype=torch.float64)
    whitened = normal(generator, n, dimension)
    features = torch.nn.functional.normalize(whitened * scale, dim=1)
    odds = torch.sigmoid(2.0 * whitened @ directions)
    labels = torch.where(uniform(generator, n, 2) < odds, 1.0, -1.0).to(torch.float64)

    def losses(model: Any, batch: tuple[Tensor, Tensor]) -> Tensor:
        a, y = batch
        x: Tensor = model()
        fit: Tensor = softplus(-y * (a @ x).unsqueeze(1)).mean(0)
        return fit + regulariser * (x.square() / (1.0 + x.square())).sum()

    return Problem(
        model=Point(torch.zeros(dimension)),
        losses=losses,
        data=(features, labels),
        tasks=("labels 1", "labels 2"),
        source=f"nonconvex logistic regression, n = {n}, dimension {dimension}",
        synthetic=True,
    )


@dataclass(frozen=True)
class Smoothness:
    """Lipschitz constants of the gradients of a single sample's loss and of the mean loss."""

    sample: float
    mean: float


def smoothness(features: Tensor, regulariser: float) -> Smoothness:
    """Bound the smoothness of ``nonconvex_logistic``.

    The second derivative is at most 1/4 for the logistic loss along a_j, and at most 2 for x^2 / (1 + x^2).

    >>> smoothness(torch.eye(2, dtype=torch.float64), 0.0)
    Smoothness(sample=0.25, mean=0.125)
    """
    covariance = features.T @ features / len(features)
    return Smoothness(
        sample=features.square().sum(1).max().item() / 4.0 + 2.0 * regulariser,
        mean=torch.linalg.eigvalsh(covariance)[-1].item() / 4.0 + 2.0 * regulariser,
    )
