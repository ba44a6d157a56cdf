"""A step size without a number: the distance gone over the gradients seen, held where steps are stable."""

from __future__ import annotations

import math
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from stimulus_moo.errors import InvalidOption, StateMismatch
from stimulus_moo.multigradient import MultiGradient
from stimulus_moo.optim.pair import check_pair
from stimulus_moo.optim.turn import Turn
from stimulus_moo.options import real
from stimulus_moo.probe import Observation, distance, length
from stimulus_moo.state import Stateful

#: the ``turn`` above which steps become shorter and below which they may be as long as the distance rule says
LONG, SHORT = 1.5, 0.7

#: what is left of c for every time the last step was taken back
TAKEN_BACK = 0.8


class SmoothnessLR(Stateful):
    r"""Sets an optimizer's learning rate from the way gone so far and from a batch at two points.

    .. code-block:: text

        r    <- max(r, ||x_t - x_0||)                             first: reach (1 + ||x_0||)
        G    <- G + ||d_t||^2
        turn =  sqrt(mean of ||D||^2 / mean of ||d_{t-1}||^2)     D = sum_s lambda^s (grad f_A^s(x_t) - grad f_A^s(x_{t-1}))
        c    <- (1 - 3/t) c  if turn > 1.5,  (1 + 3/t) c  if turn < 0.7,  0.8 c for every time a Safeguard took
                the step back;  c <= 1, and 3/t is at most 1/5
        eta  <- (1 - momentum) c r / sqrt(G)

    Without c this is DoG, "distance over gradients" (Ivgi, Hinder and Carmon, 2023): from a first step of a thousandth
    of the parameters' norm the rate grows quickly to what the distance to a solution allows. G stops growing where
    variance reduction lets d vanish, so the rate does not decay then. c holds it where the gradient does not turn
    round at every step; it moves by 3/t, quickly at first and ever more slowly.

    Until ``step`` is called for the first time the rate is 0, so that the optimizer cannot move with a rate nobody
    chose. Call it between ``backward`` and the optimizer's step. Groups keep the ratio of their rates to the first
    group's.

    It is meant for SGD and ``HeavyBall``; it needs an estimator that evaluates two points. It keeps a copy of x_0.

    Args:
        optimizer: its learning rates are set from here on.
        multigradient: it is watched from here on.
        reach: how far the first step goes, in units of 1 + ||x_0||.

    Attributes:
        lr: the rate of the first group, None before the first step.
        factor: c.
        turn: as above, or None.

    Raises:
        InvalidOption: the estimator evaluates one point only, so nothing can be seen.

    >>> import torch
    >>> from stimulus_moo import Filtered, MultiGradient, SmoothnessLR, pareto_stationarity
    >>> _ = torch.manual_seed(0)
    >>> model = torch.nn.Linear(3, 1)
    >>> x = torch.randn(1600, 3)
    >>> y = x @ torch.randn(3, 2)
    >>> def losses(model, batch):
    ...     return (model(batch[0]) - batch[1]).square().mean(0)
    >>> mg = MultiGradient(model, losses, Filtered())
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    >>> schedule = SmoothnessLR(optimizer, mg)
    >>> before = pareto_stationarity(model, losses, [(x, y)])
    >>> for batch in zip(x.split(8), y.split(8)):
    ...     step = mg.backward(batch)
    ...     schedule.step()
    ...     optimizer.step()
    >>> pareto_stationarity(model, losses, [(x, y)]) < 1e-4 * before
    True
    """

    state_names = ("lr", "origin", "reached", "gradients", "factor", "t", "_turn")
    optional_names = MappingProxyType({"lr": float, "origin": list})

    def __init__(self, optimizer: Optimizer, multigradient: MultiGradient, *, reach: float = 1e-3) -> None:
        check_pair(optimizer, multigradient)
        if not multigradient.estimator.two_point:
            raise InvalidOption(
                "lr='auto' and SmoothnessLR read the step size off a batch at two points, but "
                f"{type(multigradient.estimator).__name__} evaluates one; give a number, or take Filtered, Recursive, "
                "Page or Storm"
            )
        self.optimizer = optimizer
        self.multigradient = multigradient
        self.reach = real("reach", reach, low=0.0, open_low=True)
        self.lr: float | None = None
        self.origin: list[Tensor] | None = None  # x_0
        self.reached = 0.0  # r
        self.gradients = 0.0  # G
        self.factor = 1.0  # c
        self.t = 0
        self._turn = Turn()
        first = float(optimizer.param_groups[0]["lr"])
        self._ratios = [float(group["lr"]) / first if first else 1.0 for group in optimizer.param_groups]
        multigradient.watch()
        self._set(0.0)

    @property
    def turn(self) -> float | None:
        """How much the gradient changes in a step against its size; None before it was seen."""
        return self._turn.value

    def step(self) -> None:
        """Set the learning rate for the step that comes next."""
        seen = self.multigradient.observation
        norm = self.multigradient.norm
        if seen is None or not norm:
            return
        here = [parameter.detach() for parameter in self.multigradient.objective.parameters]
        if self.origin is None:
            self.origin = [value.clone() for value in here]
            self.reached = self.reach * (1.0 + length(here))
        self.reached = max(self.reached, distance(here, self.origin))
        self.gradients += norm**2
        self.t += 1
        self._learn(seen)
        self._set(self.factor * self.reached / math.sqrt(self.gradients))

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
            self.origin = [torch.as_tensor(o).to(p) for o, p in zip(self.origin, parameters, strict=True)]
        self._set(self.factor * self.reached / math.sqrt(self.gradients) if self.gradients else 0.0)

    def _learn(self, seen: Observation) -> None:
        share = min(3.0 / self.t, 0.2)
        self.factor *= TAKEN_BACK**seen.retries
        looked, turn = self._turn.learn(seen), self.turn
        if turn is not None and turn < SHORT:
            self.factor = min(self.factor * (1.0 + share), 1.0)
        elif turn is not None and turn > LONG and looked:
            self.factor *= 1.0 - share

    def _set(self, rate: float) -> None:
        for group, ratio in zip(self.optimizer.param_groups, self._ratios, strict=True):
            group["lr"] = rate * ratio * (1.0 - group.get("momentum", 0.0))
        self.lr = float(self.optimizer.param_groups[0]["lr"]) if rate else None
