"""Small models, a training loop and bitwise comparison of everything a step may touch, for the tests of the core."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from stimulus_moo import MultiGradient

Batch = tuple[Tensor, Tensor]


class TwoHeads(nn.Module):
    """A trunk and two heads, with anything between them: the usual multi-task model."""

    def __init__(self, middle: nn.Module | None = None, dtype: torch.dtype = torch.float64) -> None:
        super().__init__()
        self.trunk = nn.Linear(4, 5, dtype=dtype)
        self.middle = nn.Identity() if middle is None else middle
        self.left = nn.Linear(5, 1, dtype=dtype)
        self.right = nn.Linear(5, 1, dtype=dtype)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        hidden = self.middle(torch.tanh(self.trunk(x)))
        return self.left(hidden)[:, 0], self.right(hidden)[:, 0]


def two_losses(model: nn.Module, batch: Any) -> tuple[Tensor, Tensor]:
    x, y = batch
    left, right = model(x)
    return (left - y[:, 0]).square().mean(), (right - y[:, 1]).square().mean()


def two_heads(middle: nn.Module | None = None, dtype: torch.dtype = torch.float64, seed: int = 0) -> TwoHeads:
    torch.manual_seed(seed)
    return TwoHeads(middle, dtype)


def data(size: int = 24, seed: int = 1, dtype: torch.dtype = torch.float64) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(size, 4, generator=generator, dtype=dtype)
    return x, torch.randn(size, 2, generator=generator, dtype=dtype)


def cut(columns: Batch, size: int) -> list[Batch]:
    return list(zip(*(column.split(size) for column in columns), strict=True))


def vector(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().double().flatten() for p in model.parameters()])


def jacobian(model: nn.Module, losses: Callable[..., Any], batch: Any) -> Tensor:
    """The S x P gradients of the losses by plain autograd."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    with torch.enable_grad():
        values = losses(model, batch)
    rows = []
    for value in values:
        gradients = torch.autograd.grad(value, parameters, retain_graph=True, allow_unused=True)
        parts = [torch.zeros_like(p) if g is None else g for p, g in zip(parameters, gradients, strict=True)]
        rows.append(torch.cat([part.double().flatten() for part in parts]))
    return torch.stack(rows)


def stored_rows(mg: MultiGradient) -> Tensor:
    """U as a dense S x P matrix in the order of the trainable parameters."""
    parameters = {name: p for name, p in mg.objective.model.named_parameters() if p.requires_grad}
    return torch.stack(
        [
            torch.cat([row.get(name, torch.zeros_like(p)).double().flatten() for name, p in parameters.items()])
            for row in mg.rows()
        ]
    )


def direction(model: nn.Module) -> Tensor:
    """d_t as one vector; parameters without a gradient count as zero."""
    return torch.cat(
        [(torch.zeros_like(p) if p.grad is None else p.grad).double().flatten() for p in model.parameters()]
    )


def same(a: Any, b: Any) -> bool:
    """Deep equality, bit for bit."""
    if isinstance(a, Tensor):
        return isinstance(b, Tensor) and a.dtype == b.dtype and a.shape == b.shape and torch.equal(a, b)
    if isinstance(a, dict):
        return isinstance(b, dict) and a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    return bool(a == b)


def everything(mg: MultiGradient) -> dict[str, Any]:
    """All that a call of ``backward`` may change, copied."""
    model = mg.objective.model
    return {
        "parameters": {name: p.detach().clone() for name, p in model.named_parameters()},
        "gradients": {name: None if p.grad is None else p.grad.clone() for name, p in model.named_parameters()},
        "buffers": {name: b.clone() for name, b in model.named_buffers()},
        "random": torch.get_rng_state(),
        "state": mg.state_dict(),
        "counters": (mg.t, mg.samples, mg.gradients, mg.objective.count),
    }


def differing(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """The names of what changed."""
    return [name for name in before if not same(before[name], after[name])]


def train(mg: MultiGradient, batches: Iterable[Any], lr: float = 0.05) -> Tensor:
    """Plain gradient steps on d_t; the path of the parameters, one row a step."""
    model = mg.objective.model
    path = []
    for batch in batches:
        mg.backward(batch)
        with torch.no_grad():
            for p in model.parameters():
                if p.grad is not None:
                    p -= lr * p.grad
        path.append(vector(model))
    return torch.stack(path)


def round_trip(state: Any, folder: Any) -> Any:
    """A state saved to a file and loaded as an untrusted one would be."""
    torch.save(state, folder / "state.pt")
    return torch.load(folder / "state.pt", weights_only=True)
