"""A step size without a number: 1 over the smoothness seen, times a factor that the losses themselves adjust."""

from __future__ import annotations

import math
from types import MappingProxyType

from torch.optim import Optimizer

from stimulus_moo.errors import InvalidOption
from stimulus_moo.multigradient import MultiGradient
from stimulus_moo.optim.pair import check_pair
from stimulus_moo.options import real
from stimulus_moo.probe import Observation, length
from stimulus_moo.state import Stateful

#: the largest c
MOST = 2.0


class SmoothnessLR(Stateful):
    r"""Sets an optimizer's learning rate from what ``MultiGradient`` sees of a batch at two points.

    .. code-block:: text

        L   <- max(memory L, ||sum_s lambda^s D^s|| / ||x_t - x_{t-1}||)
        rho <- 0.9 rho + 0.1 (decrease of the lambda-weighted loss of the batch) / (||d_{t-1}|| ||x_t - x_{t-1}||)
        c   <- 1.02 c  if rho > 0.3  (the loss falls as the gradient promises: longer steps can pay),
               0.9 c   if rho < 0,   and half of it for every time a Safeguard took the step back;    1/10 <= c <= 2
        eta <- min(c / L, growth eta)

    The first step moves the parameters by a thousandth of their norm. Until ``step`` is called for the first time the
    rate is 0, so that the optimizer cannot move with a rate nobody chose. Call it between ``backward`` and the
    optimizer's step. Groups keep the ratio of their rates to the first group's.

    It is meant for SGD and ``HeavyBall``; it needs an estimator that evaluates two points.

    Args:
        optimizer: its learning rates are set from here on.
        multigradient: it is watched from here on.
        memory: share of the last L that stays.
        growth: the most by which the rate grows in a step.

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
    >>> pareto_stationarity(model, losses, [(x, y)]) < 1e-6 * before
    True
    """

    state_names = ("lr", "smoothness", "factor", "ratio")
    optional_names = MappingProxyType({"lr": float, "smoothness": float})

    def __init__(
        self, optimizer: Optimizer, multigradient: MultiGradient, *, memory: float = 0.95, growth: float = 1.2
    ) -> None:
        check_pair(optimizer, multigradient)
        if not multigradient.estimator.two_point:
            raise InvalidOption(
                "lr='auto' and SmoothnessLR read the step size off a batch at two points, but "
                f"{type(multigradient.estimator).__name__} evaluates one; give a number, or take Filtered, Recursive, "
                "Page or Storm"
            )
        self.optimizer = optimizer
        self.multigradient = multigradient
        self.memory = real("memory", memory, low=0.0, high=1.0)
        self.growth = real("growth", growth, low=1.0)
        self.lr: float | None = None  # eta of the first group
        self.smoothness: float | None = None  # L
        self.factor = 1.0  # c
        self.ratio = 0.5  # rho
        first = float(optimizer.param_groups[0]["lr"])
        self._ratios = [float(group["lr"]) / first if first else 1.0 for group in optimizer.param_groups]
        multigradient.watch()
        self._set(0.0)

    def step(self) -> None:
        """Set the learning rate for the step that comes next."""
        seen = self.multigradient.observation
        norm = self.multigradient.norm
        if seen is None or not norm:
            return
        self._learn(seen)
        if self.lr is None:
            reach = max(1.0, length([p.detach() for p in self.multigradient.objective.parameters]))
            self.lr = 1e-3 * reach / norm
        elif self.smoothness:
            self.lr = min(self.factor / self.smoothness, self.growth * self.lr)
        self._set(self.lr)

    def load_state_dict(self, state: dict[str, object]) -> None:
        """Take over a saved state, and set the learning rate it says."""
        super().load_state_dict(state)
        self._set(self.lr or 0.0)

    def _learn(self, seen: Observation) -> None:
        self.factor = max(self.factor * 0.5**seen.retries, 0.1)
        found = seen.smoothness
        if found is None or not math.isfinite(found) or not seen.sq_norm or not seen.moved:
            return
        self.smoothness = found if self.smoothness is None else max(self.memory * self.smoothness, found)
        decrease = seen.decrease
        assert decrease is not None
        promised = math.sqrt(seen.sq_norm) * seen.moved
        self.ratio = 0.9 * self.ratio + 0.1 * min(max(decrease / promised, -2.0), 2.0)
        if self.ratio > 0.3:
            self.factor = min(self.factor * 1.02, MOST)
        elif self.ratio < 0.0:
            self.factor = max(self.factor * 0.9, 0.1)

    def _set(self, rate: float) -> None:
        for group, ratio in zip(self.optimizer.param_groups, self._ratios, strict=True):
            group["lr"] = rate * ratio
