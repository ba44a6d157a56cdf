"""A fairness trade-off on scikit-learn's diabetes data: one model, two losses for two groups of patients.

    python examples/fairness.py

Needs scikit-learn (the extra `lab`). A linear model predicts whether the disease progresses more than in the median
patient. The objectives are the losses of the two groups of the column `sex`, with 235 and 207 patients.

Variance reduction needs losses that are means over samples. The loss of a group g is such a mean if every sample has
the weight 1 / share_g inside the group and 0 outside:  f_g(x) = (1/n) sum_i [i in g] / share_g loss_i(x). A penalty
such as the square of a covariance between group and score is not: the square of a mean is not a sum over samples.
"""

from __future__ import annotations

import torch
from sklearn.datasets import load_diabetes
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from stimulus_moo import MinNorm, fit


def load() -> tuple[Tensor, Tensor, Tensor]:
    bundled = load_diabetes()
    inputs = torch.tensor(bundled.data, dtype=torch.float32)
    inputs = (inputs - inputs.mean(0)) / inputs.std(0)
    target = torch.tensor(bundled.target > 140.5, dtype=torch.float32)
    group = inputs[:, bundled.feature_names.index("sex")] > 0
    member = torch.stack([group, ~group], dim=1).float()
    return inputs, target, member / member.mean(0)  # 1 / share_g inside the group, 0 outside


def losses(model: nn.Module, batch: tuple[Tensor, Tensor, Tensor]) -> Tensor:
    inputs, target, importance = batch
    each = binary_cross_entropy_with_logits(model(inputs).squeeze(1), target, reduction="none")
    return (importance * each[:, None]).mean(0)


def main(steps: int = 400) -> dict[str, list[list[float]]]:
    data = load()
    found = []
    print("preference   loss of group 0   loss of group 1   stationarity")
    for preference in ([1.0, 4.0], [1.0, 1.0], [4.0, 1.0]):
        torch.manual_seed(0)
        model = nn.Linear(10, 1)
        weighting = MinNorm(preference)  # where the losses conflict, they decrease in this proportion
        result = fit(model, losses, data, method="stimulus-m", weighting=weighting, lr=0.3, steps=steps, progress=False)
        found.append(result.losses)
        a, b = result.losses
        print(f"{preference!s:12} {a:15.4f} {b:17.4f} {result.stationarity:14.1e}")
    return {"losses": found}


if __name__ == "__main__":
    main()
