"""How long Adam remembers squared gradients: short with the noise of batches, longer where it was reduced."""

from typing import Any

from torch.optim import Adam, Optimizer

from stimulus_moo.errors import InvalidOption
from stimulus_moo.multigradient import MultiGradient
from stimulus_moo.optim.checks import check_pair

SHORT, LONG = 0.97, 0.995  # beta2: about 30 and 200 steps


class SecondMoment:
    r"""Sets beta2 of an Adam-type optimizer before each of its steps: 0.97, and 0.995 while ``Adaptive`` is recursive.

    .. code-block:: text

        v <- beta2 v + (1 - beta2) d_t^2,     D = sqrt(v) + eps,     x_{t+1} = x_t - eta D^-1 (mean of d)

    While training makes progress, gradients shrink, and a D of the last thousand steps (torch's default, 0.999) is too
    large: steps become too short, most of all where a network can fit its data. Once differences have reduced the
    noise, d vanishes at the solution. A D of the last 30 steps would vanish with it, and the steps would not: they
    would stay at the length eta. A longer memory lets them shrink, and the method converge.

    It attaches itself to the optimizer; the loop stays as it is. ``fit`` uses it for ``auto``.

    Args:
        optimizer: Adam or AdamW.
        multigradient: the ``MultiGradient`` that fills the gradients.

    Raises:
        InvalidOption: the optimizer has no second moment with a beta2.

    >>> import torch
    >>> from stimulus_moo import Adaptive, MultiGradient, SecondMoment
    >>> model, x = torch.nn.Linear(2, 2), torch.randn(8, 2)
    >>> mg = MultiGradient(model, lambda m, x: m(x).square().mean(0), Adaptive([x]))
    >>> adam = torch.optim.Adam(model.parameters())
    >>> memory = SecondMoment(adam, mg)
    >>> _ = mg.backward(x)
    >>> adam.step()
    >>> adam.param_groups[0]["betas"]
    (0.9, 0.97)
    >>> memory.detach()
    """

    def __init__(self, optimizer: Optimizer, multigradient: MultiGradient) -> None:
        check_pair(optimizer, multigradient)
        if not isinstance(optimizer, Adam):
            raise InvalidOption(f"optimizer must be Adam or AdamW, found {type(optimizer).__name__}")
        self.multigradient = multigradient
        self._hook = optimizer.register_step_pre_hook(self._before_step)

    def detach(self) -> None:
        """Leave beta2 as it is from now on. Idempotent."""
        self._hook.remove()

    def _before_step(self, optimizer: Optimizer, *_: Any) -> None:
        memory = LONG if self.multigradient.estimator.recursive else SHORT
        for group in optimizer.param_groups:
            group["betas"] = (group["betas"][0], memory)
