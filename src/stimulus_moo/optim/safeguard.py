"""A guard around an optimizer: no step longer than the smoothness seen allows, and none that made things much worse."""

from __future__ import annotations

import logging
import math
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from stimulus_moo.errors import InvalidOption, NonFiniteError
from stimulus_moo.ledger import Account
from stimulus_moo.multigradient import MultiGradient, Step
from stimulus_moo.options import positive_integer, real
from stimulus_moo.probe import Observation, distance
from stimulus_moo.state import Stateful

logger = logging.getLogger("stimulus_moo")


class Safeguard(Stateful):
    r"""Keeps any optimizer's steps within what the batch at two points shows to be safe.

    .. code-block:: text

        L <- max(memory L, ||sum_s lambda^s D^s|| / ||x_t - x_{t-1}||)      D = grad F_A(x_t) - grad F_A(x_{t-1})
        a step is shortened to   ||x_{t+1} - x_t|| <= longest ||d_t|| / L
        a step is taken back if  f_A^s(x_t) > f_A^s(x_{t-1}) + rise |f_A^s(x_{t-1})| + margin (its mean so far)

    for some objective s, or if a loss or gradient at x_t is not finite. Taking back means: the parameters go to
    x_{t-1} + shorten (x_t - x_{t-1}), momentum is dropped (the optimizer's state is cleared), and the batch is
    evaluated again; the k-th time in a row only shorten^k of what was left stays, and the last time nothing. The
    learning rate is multiplied by ``shorten``, from where it recovers by the factor ``recover`` each step. What was
    evaluated for a step that was taken back is counted. Both events are counted and logged.

    All this comes from evaluations that two-point estimators (``Recursive``, ``Page``, ``Storm``, ``Filtered``) make
    anyway. While nothing fires, parameters and optimizer are what they would be without it, bit for bit; with one-point
    estimators nothing can be compared, and only steps into NaN or infinity of a two-point run are ever taken back.

    Args:
        optimizer: any ``torch.optim`` optimizer on the model's parameters.
        multigradient: the ``MultiGradient`` that fills their gradients.
        longest: the longest step, in units of ||d|| / L. ``SmoothnessLR`` finds its own factor, up to 2: give it 2.
        memory: share of the last L that stays.
        rise, margin: how much a loss of the same batch may rise, against its value and against its running mean.
        shorten: what is left of a step that is taken back, and of the learning rate.
        recover: growth of the learning rate afterwards, up to what the optimizer says.
        patience: how often one step is taken back at most, the last time to where it began.

    Attributes:
        smoothness: L as known so far, or None.
        shortened: how many steps were shortened to ``longest`` ||d|| / L.
        taken_back: how many steps were taken back.

    >>> import torch
    >>> from stimulus_moo import MultiGradient, Recursive, Safeguard
    >>> _ = torch.manual_seed(0)
    >>> model = torch.nn.Linear(3, 2)
    >>> x, y = torch.randn(64, 3), torch.randn(64, 2)
    >>> mg = MultiGradient(model, lambda m, b: (m(b[0]) - b[1]).square().mean(0), Recursive([(x, y)], period=8))
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=30.0)  # far too long
    >>> guard = Safeguard(optimizer, mg)
    >>> for _ in range(5):
    ...     for batch in zip(x.split(8), y.split(8)):
    ...         step = guard.backward(batch)  # in place of mg.backward(batch)
    ...         guard.step()  # in place of optimizer.step()
    >>> bool(step.losses.max() < 2), guard.shortened > 0
    (True, True)
    """

    state_names = ("smoothness", "scale", "shortened", "taken_back", "level")
    optional_names = MappingProxyType({"smoothness": float, "level": list})

    def __init__(
        self,
        optimizer: Optimizer,
        multigradient: MultiGradient,
        *,
        longest: float = 1.0,
        memory: float = 0.9,
        rise: float = 0.5,
        margin: float = 0.1,
        shorten: float = 0.25,
        recover: float = 1.1,
        patience: int = 16,
    ) -> None:
        if not isinstance(optimizer, Optimizer):
            raise InvalidOption(f"optimizer must be a torch.optim.Optimizer, found {optimizer!r}")
        if not isinstance(multigradient, MultiGradient):
            raise InvalidOption(f"multigradient must be a MultiGradient, found {multigradient!r}")
        self.optimizer = optimizer
        self.multigradient = multigradient
        self.longest = real("longest", longest, low=0.0, open_low=True)
        self.memory = real("memory", memory, low=0.0, high=1.0)
        self.rise = real("rise", rise, low=0.0, open_low=True)
        self.margin = real("margin", margin, low=0.0, open_low=True)
        self.shorten = real("shorten", shorten, low=0.0, high=1.0, open_low=True)
        self.recover = real("recover", recover, low=1.0)
        self.patience = positive_integer("patience", patience)
        self.smoothness: float | None = None
        self.scale = 1.0  # what the learning rate is multiplied by
        self.shortened = 0
        self.taken_back = 0
        self.level: list[float] | None = None  # running mean of |f^s|
        multigradient.watch()

    def backward(self, batch: Any = None) -> Step:
        """Do what ``MultiGradient.backward`` does, after taking the last step back as often as need be.

        Raises:
            NonFiniteError: there is NaN or infinity even next to the last point, and it is not to be skipped. As after
                any error, parameters, counters and optimizer are as they were.
        """
        mg, retries = self.multigradient, 0
        kept: list[Tensor] = []  # x_t as the user's optimizer left it, once it is taken back
        momentum, counts = self.optimizer.state, (mg.samples, mg.gradients)
        while True:
            account = Account()
            judge = self._judge if retries < self.patience and mg.revocable else None
            try:
                step = mg.attempt(batch, account, judge=judge, retries=retries)
                break
            except BaseException as error:
                refused = isinstance(error, _Refused | NonFiniteError)
                hopeless = account.paired and account.before is None  # it is no better at x_{t-1}
                if not refused or hopeless or retries == self.patience or not self._has_moved():
                    self._put(kept)
                    self.optimizer.state, (mg.samples, mg.gradients) = momentum, counts
                    if isinstance(error, NonFiniteError):
                        return mg.skip(error, anchored=account.anchored)
                    raise
                kept = kept or [parameter.detach().clone() for parameter in mg.objective.parameters]
                retries += 1
                self._take_back(error, account, self.shorten**retries if retries < self.patience else 0.0)
        if retries:
            self.taken_back += retries
            # once L is known it limits the steps; before, nothing but this does
            self.scale *= self.shorten if self.smoothness else self.shorten ** (retries * (retries + 1) / 2)
        assert mg.observation is not None
        self._learn(mg.observation)
        return step

    @torch.no_grad()
    def step(self) -> None:
        """Take the optimizer's step, shortened where it is too long."""
        with self._scaled_rates():
            self.optimizer.step()
        self.scale = min(1.0, self.scale * self.recover)
        start, norm = self.multigradient.last_point, self.multigradient.norm
        if start is None or norm is None or not self.smoothness:
            return
        parameters = self.multigradient.objective.parameters
        taken, longest = distance(parameters, start), self.longest * norm / self.smoothness
        if taken > longest * (1.0 + 1e-6):
            self.shortened += 1
            logger.debug("step %d shortened from %.3g to %.3g", self.multigradient.t - 1, taken, longest)
            for parameter, origin in zip(parameters, start, strict=True):
                parameter.copy_(torch.lerp(origin, parameter.detach(), longest / taken))

    def _judge(self, seen: Observation) -> None:
        if seen.before is None:
            return
        level = [0.0] * len(seen.losses) if self.level is None else self.level
        for s, (was, now) in enumerate(zip(seen.before.tolist(), seen.losses.tolist(), strict=True)):
            if now > was + self.rise * abs(was) + self.margin * level[s]:
                raise _Refused(f"the loss of objective {s} rose from {was:.4g} to {now:.4g} on the same batch")

    def _learn(self, seen: Observation) -> None:
        found = seen.smoothness
        if found is not None and math.isfinite(found):
            self.smoothness = found if self.smoothness is None else max(self.memory * self.smoothness, found)
        losses = [abs(loss) for loss in seen.losses.tolist()]
        if self.level is None:
            self.level = losses
        self.level = [0.9 * old + 0.1 * new for old, new in zip(self.level, losses, strict=True)]

    def _has_moved(self) -> bool:
        start = self.multigradient.last_point
        return start is not None and distance(self.multigradient.objective.parameters, start) > 0.0

    @torch.no_grad()
    def _take_back(self, error: BaseException, account: Account, left: float) -> None:
        mg = self.multigradient
        mg.samples += account.samples
        mg.gradients += account.gradients
        logger.info("the step to %d was taken back and shortened: %s", mg.t, error)
        start = mg.last_point
        assert start is not None
        for parameter, origin in zip(mg.objective.parameters, start, strict=True):
            parameter.copy_(torch.lerp(origin, parameter.detach(), left) if left else origin)
        self.optimizer.state = defaultdict(dict)

    @torch.no_grad()
    def _put(self, values: list[Tensor]) -> None:
        if values:
            for parameter, value in zip(self.multigradient.objective.parameters, values, strict=True):
                parameter.copy_(value)

    @contextmanager
    def _scaled_rates(self) -> Iterator[None]:
        """Multiply the learning rates for the time of a step, so that schedules see their own."""
        rates = [group["lr"] for group in self.optimizer.param_groups]
        if self.scale != 1.0:
            for group in self.optimizer.param_groups:
                group["lr"] = group["lr"] * self.scale
        try:
            yield
        finally:
            for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
                group["lr"] = rate


class _Refused(Exception):
    """The step to x_t is not to be."""
