"""Polyak's heavy ball: the optimizer of STIMULUS-M and STIMULUS-M+."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import ParamsT

from stimulus_moo.errors import InvalidOption
from stimulus_moo.options import real


class HeavyBall(Optimizer):
    """Gradient step plus a fraction of the last displacement.

    .. code-block:: text

        x_{t+1} = x_t - eta d_t + alpha (x_t - x_{t-1}),    x_{-1} = x_0

    It equals ``torch.optim.SGD(momentum=alpha)`` only while the learning rate is constant: SGD scales its whole
    velocity by the current rate. Parameters whose ``grad`` is None do not move and keep their last displacement.

    Args:
        params: parameters or parameter groups, as for any ``torch.optim`` optimizer.
        lr: eta >= 0.
        momentum: alpha in [0, 1).
        weight_decay: adds ``weight_decay * x_t`` to d_t (L2 penalty).

    >>> import torch
    >>> x = torch.nn.Parameter(torch.tensor([1.0]))
    >>> optimizer = HeavyBall([x], lr=0.1, momentum=0.5)
    >>> for _ in range(2):
    ...     x.grad = 2 * x.detach()
    ...     optimizer.step()
    >>> round(x.item(), 6)  # 0.8, then 0.8 - 0.1 * 1.6 + 0.5 * (0.8 - 1)
    0.54
    """

    def __init__(self, params: ParamsT, lr: float, momentum: float = 0.5, *, weight_decay: float = 0.0) -> None:
        defaults = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay}
        _check(defaults)
        try:
            super().__init__(params, defaults)
        except InvalidOption:
            raise
        except (TypeError, ValueError, AttributeError) as error:
            found = f"found {params!r}; pass model.parameters(), for example"
            raise InvalidOption(f"params must be parameters or parameter groups, {found}") from error

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a parameter group with its own options."""
        _check(self.defaults | param_group)
        super().add_param_group(param_group)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take one step."""
        with torch.enable_grad():
            loss = None if closure is None else closure()
        for group in self.param_groups:
            xs = [x for x in group["params"] if x.grad is not None]
            if not xs:
                continue
            ds: Any = [x.grad for x in xs]
            if group["weight_decay"]:
                ds = torch._foreach_add(ds, xs, alpha=group["weight_decay"])
            for x in xs:
                if "previous" not in self.state[x]:
                    self.state[x]["previous"] = x.clone()  # x_{-1} = x_0
            previous = [self.state[x]["previous"] for x in xs]
            displacements = torch._foreach_sub(xs, previous)
            for kept, x in zip(previous, xs, strict=True):
                kept.copy_(x)  # one by one, since torch._foreach_copy_ does not know DTensors
            torch._foreach_add_(xs, ds, alpha=-float(group["lr"]))
            torch._foreach_add_(xs, displacements, alpha=group["momentum"])
        return loss


def _check(options: dict[str, Any]) -> None:
    if not isinstance(options["lr"], Tensor):
        real("lr", options["lr"], low=0.0)
    real("momentum", options["momentum"], low=0.0, high=1.0, open_high=True)
    real("weight_decay", options["weight_decay"], low=0.0)
