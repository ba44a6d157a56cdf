"""A TorchJD weighting with variance reduction: UPGrad on recursive instead of mini-batch gradients.

    python examples/torchjd_weighting.py

Needs torchjd (`pip install torchjd`; its UPGrad also needs qpsolvers and quadprog). Every TorchJD weighting that maps
a Gramian to weights works, including weightings with state.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torchjd.aggregation import UPGradWeighting

from stimulus_moo import MiniBatch, MultiGradient, Recursive, pareto_stationarity


def losses(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    inputs, targets = batch
    return (model(inputs) - targets).square().mean(0)


def main(steps: int = 300) -> dict[str, float]:
    torch.manual_seed(0)
    x = torch.randn(400, 5)
    data = x, x @ torch.randn(5, 2) + 0.5 * torch.randn(400, 2)
    found = {}
    for name, estimator in (("mini-batch", MiniBatch()), ("recursive", Recursive([data], period=20))):
        torch.manual_seed(1)
        model = nn.Linear(5, 1)  # one output for two targets: they conflict
        mg = MultiGradient(model, losses, estimator, UPGradWeighting())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        for _ in range(steps):
            chosen = torch.randint(400, (20,))
            mg.backward((data[0][chosen], data[1][chosen]))
            optimizer.step()
        found[name] = pareto_stationarity(model, losses, [data])
        print(f"{name}: stationarity {found[name]:.1e} after {mg.gradients} gradients")
    return found


if __name__ == "__main__":
    main()
