"""Literal twin of the estimators with missing labels: every objective is the mean over its own labelled samples."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from stimulus_moo import MinNorm

N, BATCH, OBJECTIVES = 30, 6, 3
BETA, PERIOD, RATE = 0.3, 3, 0.2
Batch = tuple[Tensor, Tensor]


class ThreeHeads(nn.Module):
    """A trunk and three heads."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Linear(4, 3, dtype=torch.float64)
        self.heads = nn.ModuleList(nn.Linear(3, 1, dtype=torch.float64) for _ in range(OBJECTIVES))

    def forward(self, x: Tensor) -> list[Tensor]:
        hidden = torch.tanh(self.trunk(x))
        return [head(hidden)[:, 0] for head in self.heads]


def model() -> ThreeHeads:
    torch.manual_seed(0)
    return ThreeHeads()


def columns() -> Batch:
    """Samples with missing labels, which are NaN: few for objective 1, and none in the first ones for objective 2."""
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(N, 4, generator=generator, dtype=torch.float64)
    y = torch.randn(N, OBJECTIVES, generator=generator, dtype=torch.float64)
    missing = torch.rand(N, OBJECTIVES, generator=generator) < torch.tensor([0.2, 0.7, 0.4])
    missing[:8, 2] = True
    missing[:2] = True  # these have no label at all
    return x, y.masked_fill(missing, torch.nan)


def batches(steps: int) -> list[Batch]:
    """Batches of unequal labels; in the third, objective 2 has none."""
    x, y = columns()
    generator = torch.Generator().manual_seed(3)
    orders = [torch.randperm(N, generator=generator)[:BATCH] for _ in range(steps)]
    orders[2:3] = [torch.arange(BATCH)] * len(orders[2:3])
    return [(x[order], y[order]) for order in orders]


def losses(model: nn.Module, batch: Batch) -> tuple[Tensor, ...]:
    """The means over the labelled samples; NaN where there are none."""
    x, y = batch
    found, known = model(x), y.isfinite()
    return tuple((found[s][known[:, s]] - y[known[:, s], s]).square().mean() for s in range(OBJECTIVES))


def counts(batch: Batch) -> Tensor:
    return batch[1].isfinite().sum(0)


def masked_gradients(model: nn.Module, batch: Batch) -> tuple[Tensor, list[float]]:
    """The S x P gradients of the means over all labelled samples of a batch, and the losses; 0 and NaN without any."""
    parameters, (x, y) = list(model.parameters()), batch
    rows, values = [], []
    for s in range(OBJECTIVES):
        chosen = y[:, s].isfinite()
        if not chosen.any():
            rows.append(torch.zeros(sum(p.numel() for p in parameters), dtype=torch.float64))
            values.append(float("nan"))
            continue
        loss = (model(x[chosen])[s] - y[chosen, s]).square().sum() / chosen.sum()
        gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
        parts = [torch.zeros_like(p) if g is None else g for p, g in zip(parameters, gradients, strict=True)]
        rows.append(torch.cat([part.reshape(-1) for part in parts]))
        values.append(loss.item())
    return torch.stack(rows), values


def solve(rows: Tensor) -> Tensor:
    """Min-norm weights over the rows that are not zero."""
    present = rows.square().sum(1) > 0
    weights = torch.zeros(len(rows), dtype=torch.float64)
    weights[present] = MinNorm()(rows[present] @ rows[present].T)
    return weights


@dataclass
class Told:
    """One step of the twin."""

    point: Tensor
    weights: Tensor
    losses: list[float]


Rule = Callable[[int, Tensor, Tensor, Tensor], Tensor]  # t, u_{t-1}, g(x_t), g(x_{t-1}) to u_t


def recursive(t: int, old: Tensor, now: Tensor, before: Tensor) -> Tensor:
    return old + now - before


def mini_batch(t: int, old: Tensor, now: Tensor, before: Tensor) -> Tensor:
    return now


def tracking(t: int, old: Tensor, now: Tensor, before: Tensor) -> Tensor:
    return old - BETA * (old - now)


def storm(t: int, old: Tensor, now: Tensor, before: Tensor) -> Tensor:
    return now if t == 0 else now + (1 - BETA) * (old - before)


def follow(
    rule: Rule,
    steps: int,
    *,
    anchors: Sequence[int] = (),
    solves: Callable[[int], bool] | None = None,
    fixed: Tensor | None = None,
) -> list[Told]:
    """Take gradient steps with a rule; ``solves`` says at which steps weights are not kept (None: all S rows kept).

    Under kept or fixed weights the rule is applied to the one loss lambda . F.
    """
    net, whole = model(), columns()
    size = sum(p.numel() for p in net.parameters())
    rows, row = torch.zeros(OBJECTIVES, size, dtype=torch.float64), torch.zeros(size, dtype=torch.float64)
    weights, previous, told = fixed, [p.detach().clone() for p in net.parameters()], []
    for t, batch in enumerate(batches(steps)):
        here = [p.detach().clone() for p in net.parameters()]
        anchored = t in anchors
        now, values = masked_gradients(net, whole if anchored else batch)
        before = _at(net, previous, batch)
        if solves is None and fixed is None:
            rows = now if anchored else rule(t, rows, now, before)
            weights = solve(rows)
            direction = weights @ rows
        else:
            if solves is not None and solves(t):
                weights = solve(now)
            assert weights is not None
            row = weights @ now if anchored else rule(t, row, weights @ now, weights @ before)
            direction = row
        previous, start = here, 0
        with torch.no_grad():
            for p in net.parameters():
                p -= RATE * direction[start : start + p.numel()].view_as(p)
                start += p.numel()
        point = torch.cat([p.detach().flatten() for p in net.parameters()])
        told.append(Told(point, weights, values))
    return told


def _at(net: nn.Module, point: Sequence[Tensor], batch: Batch) -> Tensor:
    here = [p.detach().clone() for p in net.parameters()]
    _put(net, point)
    found, _ = masked_gradients(net, batch)
    _put(net, here)
    return found


@torch.no_grad()
def _put(net: nn.Module, point: Sequence[Tensor]) -> None:
    for p, value in zip(net.parameters(), point, strict=True):
        p.copy_(value)


def walk(mg: Any, steps: int, share: slice = slice(None), *, rate: float = RATE) -> list[Told]:
    """Take gradient steps with the library on the same batches, or on a share of each."""
    optimizer, told = torch.optim.SGD(mg.objective.model.parameters(), lr=rate), []
    for x, y in batches(steps):
        step = mg.backward((x[share], y[share]))
        optimizer.step()
        point = torch.cat([p.detach().flatten() for p in mg.objective.model.parameters()])
        told.append(Told(point, step.weights, step.losses.tolist()))
    return told
