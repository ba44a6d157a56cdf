"""Every model of the lab as data, small enough to test: how to build it, what it takes, what it returns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from stimulus_moo.lab.models import LeNet, LinearModel, MultiHead, ResNet18, TanhMLP, TupleHeads


@dataclass(frozen=True)
class Entry:
    name: str
    build: Callable[[], nn.Module]
    input_shape: tuple[int, ...]
    outputs: tuple[tuple[int, ...], ...] | tuple[int, ...]  # shapes of one sample's output, nested for a tuple

    def inputs(self, samples: int = 4) -> Tensor:
        return torch.randn(samples, *self.input_shape, generator=torch.Generator().manual_seed(7))


MULTI_HEAD = [
    Entry("lenet", lambda: LeNet(3, classes=5, image_size=20), (1, 20, 20), ((5,), (5,), (5,))),
    Entry("mlp", lambda: TanhMLP((6, 5, 4, 3)), (6,), (3,)),
    Entry("resnet-small", lambda: ResNet18(3, width=8, small_images=True), (3, 16, 16), (3,)),
    Entry("resnet-imagenet-stem", lambda: ResNet18(3, width=8), (3, 40, 40), (3,)),
    Entry("resnet-batch-norm", lambda: ResNet18(3, width=6, norm="batch").eval(), (3, 40, 40), (3,)),
    Entry("own-trunk", lambda: MultiHead(nn.Linear(6, 4), nn.Linear(4, 3)), (6,), (3,)),
    Entry(
        "own-trunk-tuple",
        lambda: MultiHead(nn.Linear(6, 4), TupleHeads([nn.Linear(4, k) for k in (1, 2, 3)])),
        (6,),
        ((1,), (2,), (3,)),
    ),
]
EVERY_MODEL = [*MULTI_HEAD, Entry("linear", lambda: LinearModel(6, 3), (6,), (3,))]


def per_objective(outputs: Tensor | tuple[Tensor, ...]) -> list[Tensor]:
    """What objective s sees, for each s."""
    return list(outputs.unbind(dim=1)) if isinstance(outputs, Tensor) else list(outputs)
