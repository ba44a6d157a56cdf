"""Multi-target regression with ``fit``: six blood values of scikit-learn's diabetes data, one loss each.

    python examples/multi_target_regression.py

Needs scikit-learn (the extra `lab`). ``fit`` takes the method by name: here STIMULUS-M, and Adam on the mean of the six
losses as the baseline. Both use the same number of gradient evaluations. With these step sizes Adam has the lower mean
loss, and STIMULUS-M is closer to a Pareto-stationary point. Compare both measures before you choose.
"""

from __future__ import annotations

import torch
from sklearn.datasets import load_diabetes
from torch import Tensor, nn

from stimulus_moo import fit


def load() -> tuple[Tensor, Tensor]:
    bundled = load_diabetes()
    table = torch.tensor(bundled.data, dtype=torch.float32)
    table = (table - table.mean(0)) / table.std(0)
    return table[:, :4], table[:, 4:]  # from age, sex, body mass index and blood pressure to s1 ... s6


def losses(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    inputs, targets = batch
    return (model(inputs) - targets).square().mean(0)  # a 1-D tensor of S losses, or a tuple


def main(gradients: int = 40_000) -> dict[str, float]:
    data = load()
    found = {}
    for method, lr in (("stimulus-m", 0.1), ("scalarisation-adam", 0.003)):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 6))
        result = fit(model, losses, data, method=method, lr=lr, gradients=gradients, progress=False)
        found[method] = result.stationarity
        mean, worst = sum(result.losses) / 6, max(result.losses)
        print(f"{method:20} mean loss {mean:.4f}, worst {worst:.4f}, stationarity {result.stationarity:.1e}")
    return found


if __name__ == "__main__":
    main()
