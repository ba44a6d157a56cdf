"""Custom weightings: any function from the S x S Gramian to S weights can be used with variance reduction.

    python examples/custom_weighting.py

Needs no packages beyond the library. The first weighting is a plain function. The second has state: it is a
``Weighting`` that lists its state in ``state_names``, which is then saved, restored and rolled back automatically.
"""

from __future__ import annotations

from types import MappingProxyType

import torch
from torch import Tensor, nn

from stimulus_moo import MultiGradient, Recursive, Weighting, pareto_stationarity

SCALES = torch.tensor([1.0, 10.0])  # the second loss is ten times as large


def equal_pull(gramian: Tensor) -> Tensor:
    """Weight every objective by the inverse norm of its gradient."""
    weights = 1.0 / gramian.diagonal().sqrt().clamp_min(1e-12)
    return weights / weights.sum()


class SteadyPull(Weighting):
    """The same with a running mean of the squared norms, which is less sensitive to a single batch."""

    state_names = ("mean",)
    optional_names = MappingProxyType({"mean": Tensor})  # None before the first call

    def __init__(self, memory: float = 0.9) -> None:
        self.memory = memory
        self.mean: Tensor | None = None

    def __call__(self, gramian: Tensor) -> Tensor:
        squares = gramian.diagonal().clone()
        self.mean = squares if self.mean is None else self.memory * self.mean + (1 - self.memory) * squares
        return equal_pull(torch.diag(self.mean))


def losses(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    inputs, targets = batch
    return SCALES * (model(inputs) - targets).square().mean(0)  # one output for two targets: they conflict


def main(steps: int = 200) -> dict[str, float]:
    found = {}
    for name, weighting in (("equal pull", equal_pull), ("steady pull", SteadyPull())):
        torch.manual_seed(0)
        x = torch.randn(256, 4)
        data = x, x @ torch.randn(4, 2)
        model = nn.Linear(4, 1)
        mg = MultiGradient(model, losses, Recursive([data], period=16), weighting)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.03)
        for _ in range(steps):
            chosen = torch.randint(256, (16,))
            step = mg.backward((data[0][chosen], data[1][chosen]))
            optimizer.step()
        found[name] = pareto_stationarity(model, losses, [data])
        print(f"{name}: stationarity {found[name]:.1e}, losses {losses(model, data).tolist()}, {step.weights.tolist()}")
    return found


if __name__ == "__main__":
    main()
