"""Polyak's heavy ball, the step of STIMULUS-M and STIMULUS-M+; the last stop after the weighting."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim.optimizer import ParamsT

from stimulus_moo.options import real


class HeavyBall(Optimizer):
    """Gradient step plus a share of the last displacement.

    .. code-block:: text

        x_{t+1} = x_t - eta d_t + alpha (x_t - x_{t-1}),    x_{-1} = x_0

    It equals ``torch.optim.SGD(momentum=alpha)`` only while the learning rate is constant: SGD scales its whole velocity
    by the current rate, this rule keeps the displacement that was really made, whatever moved the parameters.

    Args:
        params: parameters or parameter groups, as for any ``torch.optim`` optimizer.
        lr: eta > 0.
        momentum: alpha in [0, 1).
        weight_decay: adds ``weight_decay * x_t`` to d_t (L2 penalty).

    Raises:
        InvalidOption: an option is out of range.

    >>> import torch
    >>> x = torch.nn.Parameter(torch.tensor([1.0]))
    >>> optimizer = HeavyBall([x], lr=0.1, momentum=0.5)
    >>> for _ in range(2):
    ...     x.grad = 2 * x.detach()
    ...     optimizer.step()
    >>> x.item()  # 0.8, then 0.8 - 0.1 * 1.6 + 0.5 * (0.8 - 1)
    0.5400000214576721
    """

    def __init__(self, params: ParamsT, lr: float, momentum: float = 0.5, *, weight_decay: float = 0.0) -> None:
        if not isinstance(lr, torch.Tensor):
            real("lr", lr, low=0.0)
        real("momentum", momentum, low=0.0, high=1.0)
        real("weight_decay", weight_decay, low=0.0)
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take one step; parameters whose ``grad`` is None stay where they are."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            eta, alpha, decay = group["lr"], group["momentum"], group["weight_decay"]  # eta, alpha in DESIGN.md
            for x in group["params"]:
                if x.grad is None:
                    continue
                d = x.grad.add(x, alpha=decay) if decay else x.grad
                state = self.state[x]
                if "previous" not in state:
                    state["previous"] = x.clone()  # x_{-1} = x_0
                displacement = x - state["previous"]
                state["previous"].copy_(x)
                x.sub_(eta * d).add_(displacement, alpha=alpha)
        return loss
