"""How long Adam remembers squared gradients: longer where variance reduction lets them vanish."""

from typing import Any

from torch.optim import Adam, Optimizer

from stimulus_moo.errors import InvalidOption
from stimulus_moo.multigradient import MultiGradient
from stimulus_moo.optim.checks import check_pair

LONG = 0.995  # beta2: about 200 steps


class SecondMoment:
    r"""Raises beta2 of an Adam-type optimizer to 0.995 while ``Adaptive`` is recursive.

    .. code-block:: text

        v <- beta2 v + (1 - beta2) d_t^2,     D = sqrt(v) + eps,     x_{t+1} = x_t - eta D^-1 (mean of d)

    While training makes progress, gradients shrink, and a D of the last thousand steps (torch's default, 0.999) is too
    large: steps become too short, most of all where a network can fit its data. ``auto`` uses 0.99. Once differences
    have reduced the noise, d vanishes at the solution. A D of the last 100 steps would vanish with it, and the steps
    would not: they would stay at the length eta. A longer memory lets them shrink, and the method converge.

    Otherwise every parameter group has the beta2 that it had when this object was built. It attaches itself to the
    optimizer; the loop stays as it is. ``fit`` uses it for ``auto``.

    Args:
        optimizer: Adam or AdamW.
        multigradient: the ``MultiGradient`` that fills the gradients.

    Raises:
        InvalidOption: the optimizer has no second moment with a beta2.

    >>> import torch
    >>> from stimulus_moo import Adaptive, MultiGradient, SecondMoment
    >>> model, x = torch.nn.Linear(2, 2), torch.randn(8, 2)
    >>> mg = MultiGradient(model, lambda m, x: m(x).square().mean(0), Adaptive([x]))
    >>> adam = torch.optim.Adam(model.parameters(), betas=(0.9, 0.99))
    >>> memory = SecondMoment(adam, mg)
    >>> _ = mg.backward(x)
    >>> adam.step()
    >>> adam.param_groups[0]["betas"]
    (0.9, 0.99)
    >>> memory.detach()
    """

    def __init__(self, optimizer: Optimizer, multigradient: MultiGradient) -> None:
        check_pair(optimizer, multigradient)
        if not isinstance(optimizer, Adam):
            raise InvalidOption(f"optimizer must be Adam or AdamW, found {type(optimizer).__name__}")
        self.multigradient = multigradient
        self._own = [group["betas"][1] for group in optimizer.param_groups]
        self._hook = optimizer.register_step_pre_hook(self._before_step)

    def detach(self) -> None:
        """Leave beta2 as it is from now on. Idempotent."""
        self._hook.remove()

    def _before_step(self, optimizer: Optimizer, *_: Any) -> None:
        least = LONG if self.multigradient.estimator.recursive else 0.0
        for group, own in zip(optimizer.param_groups, self._own, strict=False):  # groups may have been added
            group["betas"] = (group["betas"][0], max(own, least))
