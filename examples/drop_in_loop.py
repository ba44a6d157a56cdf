"""A training loop with two losses and STIMULUS-M+: only two lines of the loop change.

    python examples/drop_in_loop.py

Needs no packages beyond the library. The data is synthetic: one network predicts two labels of the same input.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from stimulus_moo import AdaptiveBatch, HeavyBall, MultiGradient, Recursive, pareto_stationarity

N, BATCH, PERIOD, MOMENTUM = 1024, 32, 32, 0.5  # batch size and period are ceil(sqrt(n)), as in the theory


def losses(model: nn.Module, batch: list[Tensor]) -> tuple[Tensor, Tensor]:
    inputs, left, right = batch
    scores = model(inputs)
    return cross_entropy(scores[:, :3], left), cross_entropy(scores[:, 3:], right)


def main(epochs: int = 20) -> dict[str, list[float]]:
    torch.manual_seed(0)
    x = torch.randn(N, 8)
    data = TensorDataset(x, x[:, :3].argmax(1), x[:, 2:5].argmax(1))
    model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 6))

    anchor = AdaptiveBatch(data, epsilon=1e-3, momentum=MOMENTUM)
    mg = MultiGradient(model, losses, Recursive(anchor, PERIOD))
    optimizer = HeavyBall(model.parameters(), lr=0.3, momentum=MOMENTUM)
    for _ in range(epochs):
        for batch in DataLoader(data, batch_size=BATCH, shuffle=True, drop_last=True):
            step = mg.backward(batch)  # replaces zero_grad, the weighted sum of the losses and its backward
            optimizer.step()

    everything = [data.tensors]
    print("losses", step.losses.tolist(), "weights", step.weights.tolist())
    print("samples", mg.samples, "gradients", mg.gradients)
    print("stationarity", pareto_stationarity(model, losses, everything))
    return {"losses": step.losses.tolist()}


if __name__ == "__main__":
    main()
