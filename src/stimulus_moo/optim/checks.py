"""Check of the optimizer and the MultiGradient passed to ``DoG`` or ``Safeguard``."""

import inspect
from typing import Any

from torch.optim import Optimizer

from stimulus_moo.errors import InvalidOption
from stimulus_moo.multigradient import MultiGradient


def check_pair(optimizer: Any, multigradient: Any) -> None:
    """Raise InvalidOption unless both are of the right type and share parameters."""
    if not isinstance(optimizer, Optimizer):
        raise InvalidOption(f"optimizer must be a torch.optim.Optimizer, found {optimizer!r}")
    if not isinstance(multigradient, MultiGradient):
        raise InvalidOption(f"multigradient must be a MultiGradient, found {multigradient!r}")
    closure = inspect.signature(optimizer.step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        found = f"{type(optimizer).__name__} evaluates the loss itself; use SGD, HeavyBall or Adam, for example"
        raise InvalidOption(f"optimizer must step from the gradients in p.grad, but {found}")
    ours = {id(parameter) for parameter in multigradient.objective.model_parameters}
    if not any(id(parameter) in ours for group in optimizer.param_groups for parameter in group["params"]):
        raise InvalidOption("optimizer must hold parameters of the model of multigradient, found none of them")
