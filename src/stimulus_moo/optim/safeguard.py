"""A guard around an optimizer: no recursion over steps too long for it, and no step that made things much worse."""

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

from stimulus_moo.errors import NonFiniteError
from stimulus_moo.estimators import Update
from stimulus_moo.ledger import Account
from stimulus_moo.multigradient import MultiGradient, Step
from stimulus_moo.optim.pair import check_pair
from stimulus_moo.optim.turn import Turn
from stimulus_moo.options import positive_integer, real
from stimulus_moo.probe import Observation, distance
from stimulus_moo.state import Stateful

logger = logging.getLogger("stimulus_moo")

#: the ``turn`` from which gradient descent diverges on a quadratic, and one that leaves room for far longer steps
DIVERGES, SHORT = 2.0, 0.1

#: growth of a lowered learning rate while ``turn`` is below SHORT
HURRY = 1.5


class Safeguard(Stateful):
    r"""Makes a variance-reduced method safe at any step size, by what a batch at two points shows.

    .. code-block:: text

        D    = sum_s lambda^s (grad f_A^s(x_t) - grad f_A^s(x_{t-1}))
        L    <- max(0.9 L, ||D|| / ||x_t - x_{t-1}||)
        turn = sqrt(mean of ||D||^2 / mean of ||d_{t-1}||^2)      about eta L for plain gradient descent

    Three things can happen:

    - ``||x_{t+1} - x_t|| > trust ||d|| / L``: a step too long for the recursion. Its error grows with the square of
      that length and stays until the next anchor, so until then the estimate is the batch's own gradient, as in SMGD,
      which stands longer steps. Every ``look``-th of these steps evaluates two points all the same. (||d|| is that of
      this step or of the steps before it, whatever is larger: with momentum d may vanish where the path turns.)
    - ``turn > 2``: steps this long diverge on a quadratic, and the learning rate is multiplied by ``lower``.
    - ``f_A^s(x_t) > f_A^s(x_{t-1}) + rise |f_A^s(x_{t-1})| + margin (its mean so far)`` for some objective s, or a loss
      or gradient at x_t is not finite: the step is taken back. The parameters go to x_{t-1} + shorten (x_t - x_{t-1}),
      momentum is dropped (the optimizer's state is cleared), and the batch is evaluated again; the k-th time in a row
      only shorten^k of what was left stays, and the last time nothing. The learning rate is shortened as the step was.

    A learning rate that was made smaller recovers by the factor ``recover`` each step, faster while ``turn`` is below
    1/10. All is counted and logged, and what was evaluated for a step that was taken back is in the counters. All comes
    from evaluations that two-point estimators (``Recursive``, ``Page``, ``Storm``, ``Filtered``) make anyway. While
    nothing fires, parameters and optimizer are what they would be without it, bit for bit; with one-point estimators
    nothing can be compared, and nothing is done. The first rule is for estimators that add differences up without end,
    ``Recursive`` and ``Page``; the others bound their own error.

    Why steps are not simply kept below 1/L: on a network that was tried, and it trained badly. L is not a constant
    there: the shorter the steps, the sharper the valleys they lead into, and the shorter the next ones.

    Args:
        optimizer: any ``torch.optim`` optimizer on the model's parameters.
        multigradient: the ``MultiGradient`` that fills their gradients.
        trust: the longest step over which the recursion goes on, in units of ||d|| / L.
        memory: share of the old values in the running means of ``turn``.
        rise, margin: how much a loss of the same batch may rise, against its value and against its running mean.
        shorten: what is left of a step that is taken back, and of the learning rate.
        lower: what is left of the learning rate where ``turn`` exceeds 2.
        recover: growth of the learning rate afterwards, up to what the optimizer says.
        patience: how often one step is taken back at most, the last time to where it began.
        look: how often two points are evaluated while the recursion is not trusted.

    Attributes:
        smoothness: L as known so far, or None.
        turn: as above, or None.
        alone: how many steps took their batch's own gradient.
        shortened: how often the learning rate was lowered because ``turn`` exceeded 2.
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
    >>> bool(step.losses.max() < 2), guard.taken_back > 0
    (True, True)
    """

    state_names = ("smoothness", "_turn", "doubted", "scale", "alone", "shortened", "taken_back", "level")
    optional_names = MappingProxyType({"smoothness": float, "level": list})

    def __init__(
        self,
        optimizer: Optimizer,
        multigradient: MultiGradient,
        *,
        trust: float = 1.0,
        memory: float = 0.8,
        rise: float = 0.5,
        margin: float = 0.1,
        shorten: float = 0.25,
        lower: float = 0.8,
        recover: float = 1.03,
        patience: int = 16,
        look: int = 4,
    ) -> None:
        check_pair(optimizer, multigradient)
        self.optimizer = optimizer
        self.multigradient = multigradient
        self.trust = real("trust", trust, low=0.0, open_low=True)
        self.rise = real("rise", rise, low=0.0, open_low=True)
        self.margin = real("margin", margin, low=0.0, open_low=True)
        self.shorten = real("shorten", shorten, low=0.0, high=1.0, open_low=True)
        self.lower = real("lower", lower, low=0.0, high=1.0, open_low=True)
        self.recover = real("recover", recover, low=1.0)
        self.patience = positive_integer("patience", patience)
        self.look = positive_integer("look", look)
        self.smoothness: float | None = None  # L
        self._turn = Turn(memory)
        self.doubted = 0  # how many steps ago the recursion was given up, counted from 1; 0 while it goes on
        self._adds_up = False  # does the estimator, at this step, add a difference to what it has?
        self.scale = 1.0  # what the learning rate is multiplied by
        self.alone = 0
        self.shortened = 0
        self.taken_back = 0
        self.level: list[float] | None = None  # running mean of |f^s|
        multigradient.watch()

    @property
    def turn(self) -> float | None:
        """How much the gradient changes in a step against its size; None before it was seen."""
        return self._turn.value

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
                step = mg.attempt(batch, account, mend=self._mend, judge=judge, retries=retries)
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
            self.scale *= self.shorten ** (retries * (retries + 1) / 2)
        assert mg.observation is not None
        self._learn(mg.observation)
        return step

    def step(self) -> None:
        """Take the optimizer's step, with a smaller learning rate where that was found to be needed."""
        with self._scaled_rates():
            self.optimizer.step()
        slow = self.turn is not None and self.turn < SHORT
        self.scale = min(1.0, self.scale * max(self.recover, HURRY if slow else 1.0))
        mg = self.multigradient
        if self.doubted or not self.smoothness or mg.last_point is None or mg.norm is None:
            return
        taken = distance(mg.objective.parameters, mg.last_point)
        if taken * self.smoothness > self.trust * max(mg.norm, math.sqrt(self._turn.lengths)):
            self.doubted = 1
            logger.debug("step %d is %.3g long, too long for the recursion", mg.t - 1, taken)

    def _mend(self, update: Update) -> Update:
        """Put the batch's own gradient in the place of a recursion that is not trusted."""
        self._adds_up = update.anchor is None and update.keep == 1.0
        if not self.doubted or not self._adds_up:
            return update
        # a share of 0 would not look at x_{t-1} at all
        share = 1e-6 if self.doubted % self.look == 0 else 0.0
        return Update(keep=share, now=1.0, before=-share, halves=update.halves)

    def _judge(self, seen: Observation) -> None:
        if seen.before is None:
            return
        level = [0.0] * len(seen.losses) if self.level is None else self.level
        for s, (was, now) in enumerate(zip(seen.before.tolist(), seen.losses.tolist(), strict=True)):
            if now > was + self.rise * abs(was) + self.margin * level[s]:
                raise _Refused(f"the loss of objective {s} rose from {was:.4g} to {now:.4g} on the same batch")

    def _learn(self, seen: Observation) -> None:
        if seen.anchored or not self._adds_up:
            self.doubted = 0
        elif self.doubted:
            self.doubted += 1
            self.alone += 1
        if self._turn.learn(seen) and (self.turn or 0.0) > DIVERGES:
            self.shortened += 1
            self.scale *= self.lower
            logger.debug("step %d: the gradient changes by more than twice its size, shorter steps", seen.step)
        if seen.smoothness is not None and math.isfinite(seen.smoothness):
            self.smoothness = max(0.9 * (self.smoothness or 0.0), seen.smoothness)
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
