"""A step size without a number: the distance gone over the gradients seen."""

from __future__ import annotations

import math
from types import MappingProxyType
from typing import Any

from torch import Tensor, optim
from torch.optim import Optimizer

from stimulus_moo._engine.observation import distance, length
from stimulus_moo._engine.warnings import WarnOnce
from stimulus_moo.errors import InvalidOption, ModelChanged, StateMismatch
from stimulus_moo.multigradient import MultiGradient
from stimulus_moo.optim.checks import check_pair
from stimulus_moo.options import real
from stimulus_moo.state import Stateful

#: optimizers of torch that step by the learning rate times the gradient, or a mean of gradients
PLAIN = (optim.SGD, optim.ASGD)

#: the last share of a training, in which the rate falls to nothing
TAIL = 0.2


class DoG(Stateful):
    r"""Sets an optimizer's learning rate from the way gone so far and the gradients seen on it.

    .. code-block:: text

        r   <- max(r, ||x_t - x_0||)          first: reach (1 + ||x_0||)
        G   <- G + ||d_t||^2
        eta <- (1 - momentum) r / sqrt(G)     in the last fifth of a training times 5 (1 - done)

    This is DoG, "distance over gradients" (Ivgi, Hinder and Carmon, 2023), on the multi-gradient: from a first step of
    a thousandth of the parameters' norm the rate grows quickly to what the distance to a solution allows. G stops
    growing where variance reduction lets d vanish, and then the rate does not decay; with mini-batches it does. Where
    the end of the training is known the rate falls to nothing on the last fifth of the way: the shorter the steps, the
    smaller the error of a variance-reduced estimate, and so the model ends much closer to a stationary point.

    Put a ``Safeguard`` beside it, as ``fit`` does: it holds the steps where the gradient does not turn round each time
    and takes back those that made a loss much worse.

    Until ``step`` is called for the first time the rate is 0, so that the optimizer cannot move with a rate nobody
    chose. Call it between ``backward`` and the optimizer's step. Groups keep the ratio of their rates to the first
    group's. It keeps a copy of x_0. A schedule of torch beside it has no effect, since it sets the rate itself.

    Args:
        optimizer: SGD, ``HeavyBall`` or another that steps by its learning rate times the gradient; its rates are set
            from here on.
        multigradient: it fills the gradients.
        reach: how far the first step goes, in units of 1 + ||x_0||.

    Attributes:
        lr: the rate of the first group, None before the first step.

    Raises:
        InvalidOption: the optimizer divides the gradient by its size, as Adam does.
        ModelChanged: parameters or groups were added, removed or frozen; build a new one.

    >>> import torch
    >>> from stimulus_moo import Filtered, MultiGradient, DoG, pareto_stationarity
    >>> _ = torch.manual_seed(0)
    >>> model = torch.nn.Linear(3, 1)
    >>> x = torch.randn(1600, 3)
    >>> y = x @ torch.randn(3, 2)
    >>> def losses(model, batch):
    ...     return (model(batch[0]) - batch[1]).square().mean(0)
    >>> mg = MultiGradient(model, losses, Filtered())
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    >>> schedule = DoG(optimizer, mg)
    >>> before = pareto_stationarity(model, losses, [(x, y)])
    >>> for batch in zip(x.split(8), y.split(8)):
    ...     step = mg.backward(batch)
    ...     schedule.step()
    ...     optimizer.step()
    >>> pareto_stationarity(model, losses, [(x, y)]) < 1e-4 * before
    True
    """

    state_names = ("origin", "reached", "gradients", "ease", "ratios", "counted")
    optional_names = MappingProxyType({"origin": list})

    def __init__(self, optimizer: Optimizer, multigradient: MultiGradient, *, reach: float = 1e-3) -> None:
        check_pair(optimizer, multigradient)
        adaptive = type(optimizer).__module__.startswith("torch.optim") and not isinstance(optimizer, PLAIN)
        if adaptive or any("betas" in group for group in optimizer.param_groups):
            raise InvalidOption(
                "lr='auto' and DoG are for steps of the learning rate times the gradient, but "
                f"{type(optimizer).__name__} divides the gradient by its size; give a number, or take SGD or HeavyBall"
            )
        self.optimizer = optimizer
        self.multigradient = multigradient
        self.reach = real("reach", reach, low=0.0, open_low=True)
        self.origin: list[Tensor] | None = None  # x_0
        self.reached = 0.0  # r
        self.gradients = 0.0  # G
        self.ease = 1.0  # what is left of the rate towards the end
        first = float(optimizer.param_groups[0]["lr"])
        self.ratios = [float(group["lr"]) / first if first else 1.0 for group in optimizer.param_groups]
        self.counted = 0  # evaluations up to the last ||d||^2 that G holds
        self._hints = WarnOnce()
        self._set()

    @property
    def lr(self) -> float | None:
        """The rate of the first group, None before the first step."""
        return float(self.optimizer.param_groups[0]["lr"]) if self.gradients else None

    def step(self, done: float = 0.0) -> None:
        """Set the learning rate for the step that comes next.

        Args:
            done: the share of the training that lies behind, from 0 to 1; 0 where its end is not known.
        """
        self.ease = min(1.0, (1.0 - real("done", done, low=0.0, high=1.0)) / TAIL)
        if [group["lr"] for group in self.optimizer.param_groups] != self._rates:
            self._hints.tell(
                "rate",
                "the learning rate is not the one that DoG has set, so another schedule is at work; it has no "
                "effect: take one of the two",
                level=3,
            )
        norm, evaluations = self.multigradient.norm, self.multigradient.gradients
        if norm and evaluations != self.counted:  # not again after a step that was skipped
            here = [parameter.detach() for parameter in self.multigradient.objective.parameters]
            if self.origin is not None and [x.shape for x in here] != [x.shape for x in self.origin]:
                raise ModelChanged("the model's trainable parameters are not those DoG has seen; build a new DoG")
            if self.origin is None:
                self.origin = [value.clone() for value in here]
                self.reached = self.reach * (1.0 + length(here))
            self.reached = max(self.reached, distance(here, self.origin))
            self.gradients += norm**2
            self.counted = evaluations
        self._set()

    def check_state(self, state: Any, path: str = "") -> None:
        """Raise StateMismatch if ``state`` does not fit, the parameters' shapes included."""
        super().check_state(state, path)
        if state["origin"] is not None:
            found = [list(value.shape) if isinstance(value, Tensor) else value for value in state["origin"]]
            needed = [list(parameter.shape) for parameter in self.multigradient.objective.parameters]
            if found != needed:
                raise StateMismatch(f"{path or self.kind}.origin must have the shapes {needed}, found {found}")

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over a saved state, and set the learning rate it says."""
        super().load_state_dict(state)
        if self.origin is not None:
            parameters = self.multigradient.objective.parameters
            self.origin = [value.to(parameter) for value, parameter in zip(self.origin, parameters, strict=True)]
        self._set()

    def _set(self) -> None:
        rate = self.ease * self.reached / math.sqrt(self.gradients) if self.gradients else 0.0
        groups = self.optimizer.param_groups
        if len(groups) != len(self.ratios):
            raise ModelChanged(
                f"the optimizer has {len(groups)} parameter groups, DoG knows {len(self.ratios)}; build a new DoG"
            )
        for group, ratio in zip(groups, self.ratios, strict=True):
            group["lr"] = rate * ratio * (1.0 - group.get("momentum", 0.0))
        self._rates = [group["lr"] for group in groups]
