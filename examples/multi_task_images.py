"""Multi-task images: one trunk and two heads classify two overlapping handwritten digits.

    python examples/multi_task_images.py

Needs scikit-learn for its bundled digits (the extra `lab`). Each head is used by one loss, so its gradient is stored
once. ``shared=`` selects the trunk, so that only its gradients determine the weights.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from stimulus_moo import HeavyBall, MultiGradient, Recursive
from stimulus_moo.lab.data import load_digits


class TwoHeads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Flatten(), nn.Linear(144, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU())
        self.left, self.right = nn.Linear(32, 10), nn.Linear(32, 10)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        features = self.trunk(images)
        return self.left(features), self.right(features)


def losses(model: nn.Module, batch: list[Tensor]) -> tuple[Tensor, Tensor]:
    images, left, right = batch
    a, b = model(images)
    return cross_entropy(a, left), cross_entropy(b, right)


def main(epochs: int = 30) -> dict[str, list[float]]:
    torch.manual_seed(0)
    data = load_digits(n_train=1024, n_test=512)
    train = TensorDataset(*data.train)
    model = TwoHeads()
    anchor = DataLoader(train, batch_size=512)
    mg = MultiGradient(model, losses, Recursive(anchor, period=16), shared=model.trunk.parameters())
    optimizer = HeavyBall(model.parameters(), lr=0.03, momentum=0.8)
    for epoch in range(epochs):
        for batch in DataLoader(train, batch_size=64, shuffle=True):
            step = mg.backward(batch)
            optimizer.step()
        if (epoch + 1) % 10 == 0:
            print(f"epoch {epoch + 1}: losses {step.losses.tolist()}, weights {step.weights.tolist()}")

    images, *labels = data.test
    with torch.no_grad():
        accuracy = [
            (scores.argmax(1) == label).float().mean().item()
            for scores, label in zip(model(images), labels, strict=True)
        ]
    print("test accuracy, left and right:", accuracy)
    return {"accuracy": accuracy}


if __name__ == "__main__":
    main()
