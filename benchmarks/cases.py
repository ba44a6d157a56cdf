"""Problems shared by the benchmarks: a model, its losses, one batch."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from stimulus_moo.lab.experiments.classification import attribute_losses, class_losses
from stimulus_moo.lab.models import LeNet, ResNet18, TanhMLP


@dataclass(frozen=True)
class Case:
    """One problem; ``model`` is never trained: every side uses its own copy."""

    name: str
    model: nn.Module
    losses: Callable[[Any, Any], Any]
    batch: tuple[Tensor, ...]
    objectives: int

    @property
    def size(self) -> int:
        """P, the number of parameters."""
        return sum(parameter.numel() for parameter in self.model.parameters())

    def copy(self) -> nn.Module:
        return deepcopy(self.model)


def square_losses(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """Return the mean squared error of every output."""
    return (model(batch[0]) - batch[1]).square().mean(0)


def mlp(*widths: int, batch: int = 8) -> Case:
    """Return a tanh perceptron; the last width is S."""
    torch.manual_seed(0)
    model = TanhMLP(widths)
    data = torch.randn(batch, widths[0]), torch.randn(batch, widths[-1])
    name = f"MLP {'-'.join(map(str, widths))}, S = {widths[-1]}, batch {batch}"
    return Case(name, model, square_losses, data, widths[-1])


def lenet(batch: int = 96) -> Case:
    torch.manual_seed(0)
    data = torch.rand(batch, 1, 36, 36), torch.randint(10, (batch,)), torch.randint(10, (batch,))
    return Case(f"LeNet, S = 2, batch {batch}, 36x36 images", LeNet(heads=2), class_losses, data, 2)


def resnet(objectives: int = 40, *, width: int = 64, batch: int = 8) -> Case:
    torch.manual_seed(0)
    data = torch.rand(batch, 3, 32, 32), torch.randint(2, (batch, objectives)).float()
    name = f"ResNet-18{'' if width == 64 else f' of width {width}'}, S = {objectives}, batch {batch}, 32x32 images"
    return Case(name, ResNet18(objectives, width=width), attribute_losses, data, objectives)


def convolutional(objectives: int, *, batch: int = 32) -> Case:
    """Return a small convolutional network with S outputs."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 16, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(16 * 25, objectives),
    )  # fmt: skip
    data = torch.rand(batch, 1, 28, 28), torch.randn(batch, objectives)
    return Case(
        f"small conv net, S = {objectives}, batch {batch}, 28x28 images", model, square_losses, data, objectives
    )


def of_step_cost(quick: bool = False) -> list[Case]:
    """Return the three cases of the step cost, or small ones of the same kind."""
    if quick:
        return [mlp(16, 8, 4), lenet(8), resnet(3, width=8, batch=2)]
    return [mlp(64, 32, 16, 8, 8), lenet(), resnet()]
