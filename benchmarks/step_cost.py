"""What does one training step cost, against TorchJD's MGDA step at one point, and against the bare backward passes?"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import nn

from benchmarks.timing import alternate
from stimulus_moo import MiniBatch, MultiGradient, Recursive

TITLE = "Cost of one step: forward, S gradient rows, weights, p.grad, SGD"
COLUMNS = ["case", "side", "ms per step (median)", "ratio to TorchJD MGDA, one point"]


def rows() -> list[list[object]]:
    table: list[list[object]] = []
    for name, model, data, target in _cases():
        medians = alternate(_sides(model, data, target), blocks=9, calls=10)
        peer = medians["TorchJD MGDA, one point"]
        for side, seconds in medians.items():
            table.append([name, side, f"{seconds * 1e3:.2f}", f"{seconds / peer:.2f}"])
    return table


def _cases() -> list[tuple[str, nn.Module, torch.Tensor, torch.Tensor]]:
    torch.manual_seed(0)
    widths = [64, 32, 16, 8, 8]
    layers: list[nn.Module] = []
    for a, b in pairwise(widths):
        layers += [nn.Linear(a, b), nn.Tanh()]
    mlp = nn.Sequential(*layers[:-1])
    wide = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 2))
    return [
        ("MLP 64-32-16-8-8, S = 8, batch 8", mlp, torch.randn(8, 64), torch.randn(8, 8)),
        ("MLP 256-512-512-2, S = 2, batch 96", wide, torch.randn(96, 256), torch.randn(96, 2)),
    ]


def _sides(model: nn.Module, data: torch.Tensor, target: torch.Tensor):
    from torchjd.aggregation import MGDA
    from torchjd.autojac import backward, jac_to_grad

    def losses(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        return (model(batch[0]) - batch[1]).square().mean(0)

    batch = (data, target)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    single = MultiGradient(model, losses, MiniBatch())
    double = MultiGradient(model, losses, Recursive([batch], period=10**9))
    double.backward(batch)
    aggregator = MGDA()
    parameters = list(model.parameters())

    def step(multigradient: MultiGradient) -> None:
        multigradient.backward(batch)
        optimizer.step()

    def peer() -> None:
        backward(list(losses(model, batch).unbind()))
        jac_to_grad(model.parameters(), aggregator)
        optimizer.step()
        optimizer.zero_grad()

    def bare() -> None:
        values = losses(model, batch)
        for s in range(len(values)):
            torch.autograd.grad(values[s], parameters, retain_graph=s + 1 < len(values))

    return {
        "TorchJD MGDA, one point": peer,
        "SMGD (ours), one point": lambda: step(single),
        "STIMULUS inner step (ours), two points": lambda: step(double),
        "bare forward and S backward passes, one point": bare,
    }
