"""Six constructed problems, each with one planted cause."""

import torch
from torch import nn

N, D = 4096, 8


def _inputs(seed=0):
    return torch.randn(N, D, generator=torch.Generator().manual_seed(seed))


def _noise(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1))


def squared(model, batch):
    return (model(batch[0]) - batch[1]).square().mean(0)


def aligned():
    x = _inputs()
    y = x[:, :4].sum(1, keepdim=True) + 0.1 * _noise(N, 2)
    return nn.Linear(D, 1), squared, (x, y)


def conflicting():
    x = _inputs()
    y = x[:, :4].sum(1, keepdim=True) * torch.tensor([1.0, -1.0]) + 0.1 * _noise(N, 2)
    return nn.Linear(D, 1), squared, (x, y)


def scaled():
    model, losses, data = aligned()
    return model, lambda m, batch: losses(m, batch) * torch.tensor([1.0, 0.001]), data


def noisy():
    x = _inputs()
    y = 0.5 * x[:, :4].sum(1, keepdim=True) + 3.0 * _noise(N, 2)
    model = nn.Linear(D, 1)
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    return model, squared, (x, y)


def pinned():
    model, losses, data = aligned()

    def with_limit(m, batch):
        first, _ = losses(m, batch)
        return first, torch.relu(m.weight.abs().max() - 100.0)  # far from the limit: exactly zero

    return model, with_limit, data


def unlearnable():
    x = _inputs()
    y = torch.cat([x[:, :4].sum(1, keepdim=True), 2.0 * _noise(N, 1)], dim=1)
    model = nn.Sequential(nn.Linear(D, 16), nn.Tanh(), nn.Linear(16, 2))
    return model, squared, (x, y)


CASES = {case.__name__: case for case in (aligned, conflicting, scaled, noisy, pinned, unlearnable)}
#: Batch size; the noise of a batch is planted by a small one.
SIZES = {"noisy": 4}
