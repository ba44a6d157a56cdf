"""The demo's front: one linear model for two groups of patients, from scikit-learn's bundled diabetes data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from stimulus_moo.fronts import Front, pareto_front
from stimulus_moo.lab.data.dependencies import optional

POINTS, STEPS = 11, 400
_MEDIAN = 140.5  # of the disease's progression


def load_patients() -> tuple[Tensor, Tensor, Tensor]:
    """Return inputs, whether the disease progressed more than in the median patient, and the shares of the groups.

    The groups are those of the column ``sex``. A share is 1 / (size of the group / n) for a member, else 0, so that
    the mean over all samples of share times loss is the mean loss of the group.
    """
    bundled = optional("sklearn.datasets").load_diabetes()
    inputs = torch.tensor(bundled.data, dtype=torch.float32)
    inputs = (inputs - inputs.mean(0)) / inputs.std(0)
    group = inputs[:, bundled.feature_names.index("sex")] > 0
    member = torch.stack([group, ~group], dim=1).float()
    return inputs, torch.tensor(bundled.target > _MEDIAN, dtype=torch.float32), member / member.mean(0)


def group_losses(model: Any, batch: tuple[Tensor, Tensor, Tensor]) -> Tensor:
    """Return the mean cross-entropy of each group."""
    inputs, target, shares = batch
    each = binary_cross_entropy_with_logits(model(inputs).squeeze(1), target, reduction="none")
    return (shares * each[:, None]).mean(0)


def trace_front(folder: Path) -> Front:
    """Trace the front of the two groups' losses; a front that is in the folder is continued."""
    data = load_patients()
    names = [f"loss of the group of {int((column > 0).sum())}" for column in data[2].T]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = nn.Linear(data[0].shape[1], 1)
        return pareto_front(
            model, group_losses, data, points=POINTS, steps=STEPS, folder=folder, names=names, progress=True, seed=0
        )
