"""Rivals that minimise one weighted loss, in a plain PyTorch loop: fixed weights, uncertainty, DWA, FAMO."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from stimulus_moo import NonFiniteError
from stimulus_moo.data.partition import ALL
from stimulus_moo.data.sources import BatchPlan, as_source
from stimulus_moo.lab.board.problem import Made


class Scalarisation:
    """The mean of the losses, and the base of other rules."""

    def parameters(self) -> list[Tensor]:
        """Return what the rule itself trains, with the model's optimizer."""
        return []

    def combine(self, losses: Tensor) -> Tensor:
        """Return the loss to differentiate."""
        return losses.mean()

    def after(self, losses: Tensor, again: Callable[[], Tensor]) -> None:
        """Learn from a step: its losses, and a function that evaluates them again, without gradients."""


class Single(Scalarisation):
    """One of the losses: a single-task model."""

    def __init__(self, task: int) -> None:
        self.task = task

    def combine(self, losses: Tensor) -> Tensor:
        """Return the loss of the task."""
        return losses[self.task]


class Relative(Scalarisation):
    """The mean of the losses, each divided by its value at the start."""

    def __init__(self, start: Sequence[float]) -> None:
        self.start = torch.tensor(start)

    def combine(self, losses: Tensor) -> Tensor:
        """Return the mean of the ratios."""
        return (losses / self.start.to(losses)).mean()


class Uncertainty(Scalarisation):
    """Homoscedastic uncertainty (Kendall, Gal and Cipolla, 2018): sum_s exp(-v_s) f_s / 2 + v_s / 2.

    The v_s start at 0 and are trained with the model, with the same learning rate.
    """

    def __init__(self, tasks: int) -> None:
        self.variances = torch.zeros(tasks, requires_grad=True)

    def parameters(self) -> list[Tensor]:
        """Return the logarithms of the variances."""
        return [self.variances]

    def combine(self, losses: Tensor) -> Tensor:
        """Return the weighted sum and the penalty."""
        return 0.5 * (torch.exp(-self.variances) * losses + self.variances).sum()


class DynamicAverage(Scalarisation):
    """Dynamic weight averaging (Liu, Johns and Davison, 2019): weights softmax(r / 2), r_s = f_s(now) / f_s(before).

    f_s(now) and f_s(before) are means over the last two periods; the weights are equal in the first two. In the paper a
    period is an epoch; here it is at most a twentieth of the run, since runs may have few epochs.
    """

    def __init__(self, tasks: int, period: int) -> None:
        self.period, self.weights = period, torch.full((tasks,), 1.0 / tasks)
        self._sum, self._steps, self._means = torch.zeros(tasks), 0, list[Tensor]()

    def combine(self, losses: Tensor) -> Tensor:
        """Return the weighted sum."""
        return self.weights.to(losses) @ losses

    def after(self, losses: Tensor, again: Callable[[], Tensor]) -> None:
        """Add up the losses, and change the weights at the end of a period."""
        self._sum, self._steps = self._sum + losses, self._steps + 1
        if self._steps == self.period:
            self._means = [*self._means[-1:], self._sum / self.period]
            self._sum, self._steps = torch.zeros_like(self._sum), 0
            if len(self._means) == 2:
                before, now = self._means
                self.weights = torch.softmax(now / before.clamp(min=1e-12) / 2.0, dim=0)


class Famo(Scalarisation):
    """FAMO (Liu, Feng, Stone and Liu, 2023): minimise c sum_s z_s log f_s, z = softmax(w), c = 1 / sum_s (z_s / f_s).

    After a step with the losses f before and f' after it on the same batch, Adam (learning rate 0.025, weight decay
    0.01, the defaults of the authors' code) steps on w with the gradient of sum_s z_s (log f_s - log f'_s). Departure:
    their code can clip the gradient of the shared parameters at norm 1; here it is not clipped, as for all rivals.
    """

    def __init__(self, tasks: int) -> None:
        self.w = torch.zeros(tasks, requires_grad=True)
        self.optimizer = torch.optim.Adam([self.w], lr=0.025, weight_decay=0.01)

    def combine(self, losses: Tensor) -> Tensor:
        """Return the weighted sum of the logarithms."""
        z, values = torch.softmax(self.w.detach(), dim=0), losses + 1e-8
        c = 1.0 / (z / values).sum().detach()
        return c * (z * values.log()).sum()

    def after(self, losses: Tensor, again: Callable[[], Tensor]) -> None:
        """Update the weights from the decrease of the losses."""
        decrease = (losses + 1e-8).log() - (again() + 1e-8).log()
        self.optimizer.zero_grad()
        with torch.enable_grad():
            (torch.softmax(self.w, dim=0) @ decrease).backward()
        self.optimizer.step()


def train(made: Made, rule: Scalarisation, *, lr: float, batch: int, passes: int, seed: int) -> int:
    """Train with Adam; the learning rate falls linearly to zero over the last half. Return the passes spent.

    Raises:
        NonFiniteError: the loss is not finite.
    """
    plan = BatchPlan(as_source(made.data), batch, seed, ALL)
    optimizer = torch.optim.Adam([*made.model.parameters(), *rule.parameters()], lr=lr)
    steps = math.ceil(passes / batch)
    for k in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = lr * min(1.0, 2.0 * (1.0 - k / steps))
        samples = plan.at(k)
        losses = stacked(made.losses(made.model, samples))
        loss = rule.combine(losses)
        if not math.isfinite(loss.item()):
            worst = int((~torch.isfinite(losses)).int().argmax())
            raise NonFiniteError(f"the loss is {loss.item()} at step {k}", objective=worst, step=k)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            rule.after(losses.detach(), _again(made.model, made.losses, samples))
    return steps * batch


def stacked(losses: Any) -> Tensor:
    """Return the losses as one tensor."""
    return losses if isinstance(losses, Tensor) else torch.stack(list(losses))


def _again(model: nn.Module, losses: Callable[[Any, Any], Any], samples: Any) -> Callable[[], Tensor]:
    return lambda: stacked(losses(model, samples))
