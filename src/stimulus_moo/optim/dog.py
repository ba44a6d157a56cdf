"""DoG: a step size that needs no tuning, from the distance covered and the gradients seen."""

import math
from collections.abc import Iterator
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, optim
from torch.optim import Optimizer

from stimulus_moo._engine.norms import sq_norm_of
from stimulus_moo._engine.warnings import WarnOnce
from stimulus_moo.errors import InvalidOption, ModelChanged
from stimulus_moo.multigradient import MultiGradient
from stimulus_moo.optim.checks import check_pair
from stimulus_moo.options import real
from stimulus_moo.state import Stateful, check_numbers, check_tensors
from stimulus_moo.weightings.metric import Metric, rule_of

PLAIN = (optim.SGD, optim.ASGD)  # torch optimizers that step by the learning rate times the gradient or its average
FIRST = 1e-3  # length of the first step, in units of 1 + ||x_0||
SMALL = 1e-3  # added to the squares of the entries of x_0, some of which may be zero, for the first step of Adam
TAIL = 0.2  # last fraction of a training, in which the rate falls to zero
ADAPTIVE_TAIL = 0.5  # the same for Adam, whose steps do not shrink with the gradient
SCALE = 1.4  # factor of the rate of Adam
MOST = 0.01  # largest rate of Adam, in units of the distance covered per entry, at least 1
FORCED = 2.0  # a rate given by the user is limited to so many times the rate found here
PIECE = 1 << 16  # entries that are summed in their own precision before float64 takes over
EVERY, ALWAYS = 8, 32  # in the metric, the first steps are measured, then one in eight, which counts as eight


class DoG(Stateful):
    r"""Sets an optimizer's learning rate to the distance covered divided by the norm of the gradients seen.

    .. code-block:: text

        r   <- max(r, ||x_t - x_0||)          initially 0.001 (1 + ||x_0||)
        G   <- G + ||d_t||^2
        eta <- (1 - momentum) r / sqrt(G)     in the last fifth of a training times 5 (1 - done)

    This is DoG, "distance over gradients" (Ivgi, Hinder and Carmon, 2023), applied to the multi-gradient. If variance
    reduction lets d vanish, G stops growing and the rate does not decay; with mini-batches it does. The decay in the
    last fifth, if the end of the training is known, is not in the paper: shorter steps reduce the error of a
    variance-reduced estimate, so the model ends much closer to a stationary point.

    With an Adam-type optimizer, distances and gradients are measured in the metric of its step:

    .. code-block:: text

        D   =  what the optimizer divides by at this step
        r   <- max(r, sqrt(sum of D (x_t - x_0)^2))        initially 0.001 sqrt(sum of D (x_0^2 + 0.001))
        G   <- G + sum of d_t^2 / D                         from step 32 on at every eighth step, eight times
        R   <- max(R, sqrt(sum of D (x_t - x_0)^2 / sum of D))      a mean distance per entry, initially 1
        eta <- min(1.4 r / sqrt(G), 0.01 R)                 in the last half of a training times 2 (1 - done)

    Adam moves every entry by about eta, whatever the gradients are. Under noise the distance grows although nothing is
    gained, and with it eta: this is what the limit is for. Both forms do not depend on the scale of the losses.

    Call ``step`` between ``backward`` and the optimizer's step; before the first call the rate is 0. Use it with a
    ``Safeguard``, as ``fit`` does, and without another schedule, which would have no effect. Parameter groups keep the
    ratio of their rates to the first group's. A copy of x_0 is stored.

    Args:
        optimizer: SGD, ``HeavyBall`` or another that steps by its learning rate times the gradient; or one of the kinds
            Adam, AdamW, NAdam, RMSprop and Adagrad.
        multigradient: the ``MultiGradient`` that fills the gradients.
        lr: a learning rate to use as far as possible: then eta is the smaller of it and twice the rate above, and
            does not decay.

    Raises:
        InvalidOption: the optimizer divides the gradient by a quantity that is not known here.
        ModelChanged: parameters or groups were added, removed or frozen; build a new one.

    >>> import torch
    >>> from stimulus_moo import DoG, Filtered, MultiGradient, pareto_stationarity
    >>> _ = torch.manual_seed(0)
    >>> model, x = torch.nn.Linear(3, 1), torch.randn(1600, 3)
    >>> y = x @ torch.randn(3, 2)
    >>> losses = lambda m, batch: (m(batch[0]) - batch[1]).square().mean(0)
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

    state_names = ("origin", "max_distance", "sum_sq_norm", "reach", "decay", "ratios", "counted", "steps")
    optional_names = MappingProxyType({"origin": list})
    count_names, amount_names = ("counted", "steps"), ("max_distance", "sum_sq_norm", "reach", "decay")

    def __init__(self, optimizer: Optimizer, multigradient: MultiGradient, lr: float | None = None) -> None:
        check_pair(optimizer, multigradient)
        self._given = None if lr is None else real("lr", lr, low=0.0, open_low=True)
        self._metric = None if rule_of(optimizer) is None else Metric(optimizer)
        adaptive = type(optimizer).__module__.startswith("torch.optim") and not isinstance(optimizer, PLAIN)
        if self._metric is None and (adaptive or any("betas" in group for group in optimizer.param_groups)):
            raise InvalidOption(
                "lr='auto' and DoG need an optimizer whose step is the learning rate times the gradient, or Adam, "
                f"AdamW, NAdam, RMSprop or Adagrad, but {type(optimizer).__name__} divides the gradient by something "
                "else; set a number, or use one of these"
            )
        self.optimizer, self.multigradient = optimizer, multigradient
        self.origin: list[Tensor] | None = None  # x_0
        self.max_distance = self.sum_sq_norm = 0.0  # r and G
        self.reach = 1.0  # R
        self.decay = 1.0  # factor of the rate at the end of a training
        first = float(optimizer.param_groups[0]["lr"])
        self.ratios = [float(group["lr"]) / first if first else 1.0 for group in optimizer.param_groups]
        self.counted = 0  # evaluations up to the last ||d||^2 in G
        self.steps = 0  # how many gradients were seen
        self._warn = WarnOnce()
        self._set()

    @property
    def lr(self) -> float | None:
        """The rate of the first group, None before the first step."""
        return float(self.optimizer.param_groups[0]["lr"]) if self.sum_sq_norm else None

    def step(self, done: float = 0.0) -> None:
        """Set the learning rate for the next step.

        Args:
            done: completed fraction of the training, from 0 to 1; 0 if its end is not known.
        """
        tail = TAIL if self._metric is None else ADAPTIVE_TAIL
        self.decay = min(1.0, (1.0 - real("done", done, low=0.0, high=1.0)) / tail)
        if [group["lr"] for group in self.optimizer.param_groups] != self._rates:
            self._warn(
                "rate",
                "the learning rate is not the one that DoG has set, so another schedule changes it too; its changes "
                "have no effect: remove the other schedule or DoG",
            )
        norm, evaluations = self.multigradient.norm, self.multigradient.gradients
        if norm and evaluations != self.counted:  # not again after a skipped step
            self._learn(norm)
            self.counted = evaluations
        self._set()

    def _learn(self, norm: float) -> None:
        here = [parameter.detach() for parameter in self.multigradient.objective.parameters]
        if self.origin is None:
            self.origin = [value.clone() for value in here]
            length = self.multigradient.objective.placement.norm(math.sqrt(sq_norm_of(here)))
            self.max_distance = FIRST * (1.0 + length) if self._metric is None else 0.0
        if [x.shape for x in here] != [x.shape for x in self.origin]:
            raise ModelChanged("the model's trainable parameters are not those DoG has seen; build a new DoG")
        self.steps += 1
        if self._metric is None:
            self.max_distance = max(self.max_distance, self.multigradient.objective.distance(self.origin))
            self.sum_sq_norm += norm**2
        elif self.steps <= ALWAYS or self.steps % EVERY == 0:
            self._learn_in_metric(self._metric, here, self.origin)

    def _learn_in_metric(self, metric: Metric, here: list[Tensor], origin: list[Tensor]) -> None:
        parameters, placement = self.multigradient.objective.model_parameters, self.multigradient.objective.placement
        sums = [torch.zeros(4, dtype=torch.float64, device=here[0].device)]
        for parameter, x, first, whole in zip(parameters, here, origin, metric.after(parameters), strict=True):
            if parameter.grad is not None:
                gradient, scaling = (placement.part_of(value, parameter) for value in (parameter.grad, whole))
                for own, begun, slope, divisor in _pieces(x, first, gradient, scaling):
                    change = own - begun
                    found = [change @ (divisor * change), slope @ (slope / divisor), divisor.sum()]
                    found.append((begun.square() + SMALL) @ divisor if self.steps == 1 else found[0])  # used once
                    sums.append(torch.stack(found).to(sums[0]))
        moved, length, total, start = placement.totals(torch.stack(sums).sum(0).tolist())  # an accelerator waits once
        if self.steps == 1:
            self.max_distance = FIRST * math.sqrt(start)
        self.max_distance = max(self.max_distance, math.sqrt(moved))
        self.reach = max(self.reach, math.sqrt(moved / total)) if total else self.reach
        self.sum_sq_norm += length * (1 if self.steps <= ALWAYS else EVERY)

    def state_dict(self) -> dict[str, Any]:
        """Return a copy of the state; x_0 is split as the parameters are."""
        state, objective = super().state_dict(), self.multigradient.objective
        if self.origin is not None:
            parts = zip(state["origin"], objective.model_parameters, strict=True)
            state["origin"] = [objective.placement.joined(part, parameter) for part, parameter in parts]
        return state

    def check_state(self, state: Any, path: str = "") -> None:
        """Raise StateMismatch if ``state`` does not fit, including the parameters' shapes."""
        super().check_state(state, path)
        check_numbers(state["ratios"], f"{path or self.kind}.ratios", len(self.optimizer.param_groups))
        if state["origin"] is not None:
            check_tensors(state["origin"], self.multigradient.objective.model_parameters, f"{path or self.kind}.origin")

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a saved state and set its learning rate."""
        super().load_state_dict(state)
        if self.origin is not None:
            objective = self.multigradient.objective
            parts = zip(self.origin, objective.model_parameters, strict=True)
            self.origin = [
                objective.placement.part_of(value, own).to(own.device, own.dtype, copy=True) for value, own in parts
            ]
        self._set()

    def _set(self) -> None:
        rate = self.max_distance / math.sqrt(self.sum_sq_norm) if self.sum_sq_norm else 0.0
        if self._metric is not None:
            rate = min(SCALE * rate, MOST * self.reach)
        rate = self.decay * rate if self._given is None else min(self._given, FORCED * rate)
        groups, known = self.optimizer.param_groups, len(self.ratios)
        if len(groups) != known:
            raise ModelChanged(f"the optimizer has {len(groups)} parameter groups, DoG knows {known}; build a new DoG")
        for group, ratio in zip(groups, self.ratios, strict=True):
            group["lr"] = rate * ratio * (1.0 - group.get("momentum", 0.0))
        self._rates = [group["lr"] for group in groups]


def _pieces(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Yield the entries of tensors of one shape in pieces that stay in the cache, in float32 at the least."""
    wide = torch.promote_types(tensors[0].dtype, torch.float32)
    flat = [tensor.reshape(-1).to(wide) for tensor in tensors]
    return zip(*(vector.split(PIECE) for vector in flat), strict=True)
