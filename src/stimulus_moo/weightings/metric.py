"""The metric in which weights are solved for: what the optimizer divides the gradient by."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Adagrad, Adam, NAdam, Optimizer, RMSprop

from stimulus_moo.errors import InvalidOption

#: from parameters to D, one tensor of positive numbers for each
Scalings = Callable[[Sequence[Tensor]], Sequence[Tensor]]


class Metric:
    r"""D of an Adam-type optimizer, or of a function from parameters to positive scalings.

    .. code-block:: text

        Adam, AdamW, NAdam:   D = sqrt(v / (1 - beta2^t)) + eps        v the second moment, its maximum with amsgrad
        RMSprop:              D = sqrt(v) + eps                        centred: v minus the square of the mean
        Adagrad:              D = sqrt(sum of squares) + eps

    as the optimizer's state stands before the step, and D = 1 before it has one. Learning rates are not part of it.
    With weights lambda from U D^-1 U^T, the step D^-1 U^T lambda decreases every objective to first order; with weights
    from U U^T it may not.

    Args:
        source: the optimizer, or the function.

    Raises:
        InvalidOption: the optimizer does not divide by a quantity that is known here.
    """

    def __init__(self, source: Optimizer | Scalings) -> None:
        self.source = source
        self._rule = rule_of(source)
        if isinstance(source, Optimizer):
            if self._rule is None:
                raise InvalidOption(
                    "metric must be None, an optimizer of the kinds Adam, AdamW, NAdam, RMSprop or Adagrad, or a "
                    f"function from parameters to positive scalings, found {type(source).__name__}; SGD and HeavyBall "
                    "need none"
                )
        elif not callable(source):
            raise InvalidOption(
                "metric must be None, an Adam-type optimizer or a function from parameters to positive scalings, found "
                f"{source!r}"
            )

    def roots(self, parameters: Sequence[Tensor]) -> list[Tensor | None]:
        """Return D^(-1/2) for each parameter; None where it is 1."""
        found = self._of_optimizer(parameters) if self._rule is not None else self._of_function(parameters)
        return [None if scaling is None else scaling.rsqrt() for scaling in found]

    def _of_optimizer(self, parameters: Sequence[Tensor]) -> list[Tensor | None]:
        assert isinstance(self.source, Optimizer)
        assert self._rule is not None
        groups = {parameter: group for group in self.source.param_groups for parameter in group["params"]}
        found: list[Tensor | None] = []
        for parameter in parameters:
            state = self.source.state.get(parameter) or {}
            known = parameter in groups and float(state.get("step", 0)) > 0
            scaling = self._rule(state, groups[parameter], None).detach() if known else None
            found.append(None if scaling is None else torch.where(scaling > 0, scaling, 1.0))
        return found

    def after(self, parameters: Sequence[Tensor]) -> Iterator[Tensor]:
        """Yield D of an optimizer as it will be after its next step, with the gradients in ``p.grad``."""
        assert isinstance(self.source, Optimizer)
        assert self._rule is not None
        groups = {parameter: group for group in self.source.param_groups for parameter in group["params"]}
        for parameter in parameters:
            if parameter.grad is None or parameter not in groups:
                yield torch.ones_like(parameter)
            else:
                state, group = self.source.state.get(parameter) or {}, groups[parameter]
                yield self._rule(state, group, _decayed(parameter, group))

    def _of_function(self, parameters: Sequence[Tensor]) -> list[Tensor | None]:
        found = list(self.source(parameters))  # type: ignore[operator]  # it is not an optimizer
        if len(found) != len(parameters):
            raise InvalidOption(f"metric must return {len(parameters)} scalings, one per parameter, found {len(found)}")
        for k, (scaling, parameter) in enumerate(zip(found, parameters, strict=True)):
            right = isinstance(scaling, Tensor) and scaling.shape == parameter.shape
            if not right:
                kind = list(scaling.shape) if isinstance(scaling, Tensor) else repr(scaling)
                raise InvalidOption(
                    f"metric must return a tensor of shape {list(parameter.shape)} for parameter {k}, found {kind}"
                )
            if not bool((torch.isfinite(scaling) & (scaling > 0)).all()):
                raise InvalidOption(f"metric must return finite positive scalings, found others for parameter {k}")
        return [scaling.detach() for scaling in found]


def _decayed(parameter: Tensor, group: dict[str, Any]) -> Tensor:
    """Return the gradient as the optimizer squares it: with its weight decay, where that is part of the gradient."""
    assert parameter.grad is not None
    gradient, decay = parameter.grad.detach(), float(group.get("weight_decay", 0.0))
    if not decay or group.get("decoupled_weight_decay"):
        return gradient
    return gradient.add(parameter.detach(), alpha=-decay if group.get("maximize") else decay)


def _adam(state: dict[str, Any], group: dict[str, Any], gradient: Tensor | None) -> Tensor:
    beta, step = float(group["betas"][1]), float(state.get("step", 0))
    moment = _averaged(state.get("exp_avg_sq"), gradient, beta)
    if group.get("amsgrad") and "max_exp_avg_sq" in state:
        moment = torch.maximum(moment, state["max_exp_avg_sq"])
    corrected: Tensor = moment / (1.0 - beta ** (step if gradient is None else step + 1.0))
    return corrected.sqrt_().add_(float(group["eps"]))


def _rmsprop(state: dict[str, Any], group: dict[str, Any], gradient: Tensor | None) -> Tensor:
    moment = _averaged(state.get("square_avg"), gradient, float(group["alpha"]))
    if group["centered"]:
        mean = state.get("grad_avg", torch.zeros_like(moment))
        mean = mean if gradient is None else torch.lerp(gradient, mean, float(group["alpha"]))
        moment = (moment - mean.square()).clamp_min(0.0)
    return moment.sqrt().add_(float(group["eps"]))


def _adagrad(state: dict[str, Any], group: dict[str, Any], gradient: Tensor | None) -> Tensor:
    total: Tensor = state["sum"]
    return (total if gradient is None else total + gradient.square()).sqrt().add_(float(group["eps"]))


def _averaged(moment: Tensor | None, gradient: Tensor | None, beta: float) -> Tensor:
    """Return a running mean of squares, with one more gradient if it is given."""
    if gradient is None:
        assert moment is not None
        return moment
    square = gradient.square()
    return square.mul_(1.0 - beta) if moment is None else square.lerp_(moment, beta)


_RULES: tuple[tuple[type[Optimizer] | tuple[type[Optimizer], ...], Callable[..., Tensor]], ...] = (
    ((Adam, NAdam), _adam),  # AdamW is an Adam
    (RMSprop, _rmsprop),
    (Adagrad, _adagrad),
)


def rule_of(optimizer: Any) -> Callable[[dict[str, Any], dict[str, Any], Tensor | None], Tensor] | None:
    """Return the rule for what an optimizer divides by, given its state, its group and one more gradient or None."""
    return next((rule for kinds, rule in _RULES if isinstance(optimizer, kinds)), None)
