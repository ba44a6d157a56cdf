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

from stimulus_moo._engine.finite import finite
from stimulus_moo._engine.observation import Observation, distance
from stimulus_moo._engine.transaction import Account
from stimulus_moo._engine.warnings import WarnOnce
from stimulus_moo.errors import NonFiniteError
from stimulus_moo.estimators import Update
from stimulus_moo.multigradient import MultiGradient, Step
from stimulus_moo.optim.checks import check_pair
from stimulus_moo.options import positive_integer, real
from stimulus_moo.safeguard.turn import Turn
from stimulus_moo.state import Stateful

logger = logging.getLogger("stimulus_moo")

#: the ``turn`` above which steps are made shorter, below which they may be longer again, and far longer
LONG, SHORT, TINY = 1.5, 0.7, 0.1

#: by what share c moves in step t: QUICK / t, between these
QUICK, LEAST, MOST = 3.0, 0.003, 0.2

#: what c becomes for every time a step is taken back, as a share of what was too long
TAKEN_BACK = 0.8

#: a shortened learning rate recovers so many times as fast while ``turn`` is below SHORT
BRISK = 3

#: and by this factor a step besides while it is below TINY
HURRY = 1.5

#: a loss so many times its running mean makes one look at x_{t-1} too
DOUBTFUL = 3.0

#: share of the old values in the sums that tell whether losses rise, and how many standard deviations are a rise
FADING, SURE = 0.9, 2.0

#: stands for "as good as nothing" of the gradient at x_{t-1}; with 0 no batch would be evaluated there at all
LOOK = 1e-6


class Safeguard(Stateful):
    r"""Makes a variance-reduced method safe at any step size, by what a batch at two points shows.

    .. code-block:: text

        D    = sum_s lambda^s (grad f_A^s(x_t) - grad f_A^s(x_{t-1}))
        L    <- max(0.9 L, ||D|| / ||x_t - x_{t-1}||)
        turn = sqrt(mean of ||D||^2 / mean of ||d_{t-1}||^2)      about eta L for plain gradient descent

    Four things can happen:

    - ``||x_{t+1} - x_t|| > trust ||d|| / L``: a step too long for the recursion. Its error grows with the square of
      that length and stays until the next anchor, so until then the estimate is the batch's own gradient, as in SMGD,
      which stands longer steps. The first of these steps and every ``look``-th after it evaluate two points all the
      same, and so does any one-point step whose loss is three times its running mean. (||d|| is that of this step or of
      the steps before it, whatever is larger: with momentum d may vanish where the path turns.)
    - The lambda-weighted loss of the batches rises from x_{t-1} to x_t, step after step: more than could be chance, by
      two standard deviations of its fading sum since the anchor. No step was too long, but the recursion's errors have
      added up to an estimate that leads uphill; until the next anchor it is not trusted either. After that anchor the
      first rule takes ||d|| for at most the anchor's, since more may be the recursion's error again, after the next one
      for at most twice as much, and so on: Adam needs that, whose steps do not get shorter with d.
    - ``turn > 1.5``: steps near the length from which gradient descent diverges on a quadratic, 2. The learning rate is
      multiplied by c <= 1, and c by 1 - 3/t now, by 1 + 3/t while turn < 0.7 (3/t kept within 0.003 and 0.2).
    - ``f_A^s(x_t) > f_A^s(x_{t-1}) + rise |f_A^s(x_{t-1})| + margin (its mean so far)`` for some objective s, or a loss
      or gradient at x_t is not finite: the step is taken back. The parameters go to x_{t-1} + shorten (x_t - x_{t-1}),
      momentum is dropped (the optimizer's state is cleared), and the batch is evaluated again; the k-th time in a row
      only shorten^k of what was left stays, and the last time, or where the parameters are not finite, nothing. The
      learning rate is shortened as the step was, and recovers by the factor ``recover`` each step, three times as fast
      while turn < 0.7 and faster still while turn < 0.1, up to c, which becomes four fifths of the share that was too
      long. The last step of a training is judged by ``settle``.

    All is counted and logged, and what was evaluated for a step that was taken back, or to look into a high loss, is in
    the counters. The rest comes from evaluations that two-point estimators (``Recursive``, ``Page``, ``Storm``,
    ``Filtered``) make anyway. While nothing fires and no high loss is looked into, parameters and optimizer are what
    they would be without it, bit for bit; with one-point estimators nothing can be compared, and nothing is done. The
    first two rules are for estimators that add differences up without end, ``Recursive`` and ``Page``; the others bound
    their own error.

    Why steps are not simply kept below 1/L: on a network that was tried, and it trained badly. L is not a constant
    there: the shorter the steps, the sharper the valleys they lead into, and the shorter the next ones.

    Args:
        optimizer: any ``torch.optim`` optimizer on the model's parameters.
        multigradient: the ``MultiGradient`` that fills their gradients.
        trust: the longest step over which the recursion goes on, in units of ||d|| / L.
        memory: share of the old values in the running means of ``turn``.
        rise, margin: how much a loss of the same batch may rise, against its value and against its running mean.
        shorten: what is left of a step that is taken back, and of the learning rate.
        recover: growth of the learning rate after a step was taken back, up to c times what the optimizer says.
        patience: how often one step is taken back at most, the last time to where it began.
        look: at which share of the steps two points are evaluated while the recursion is not trusted: 1/look.

    Attributes:
        smoothness: L as known so far, or None.
        turn: as above, or None.
        alone: how many steps took their batch's own gradient.
        factor: c.
        shortened: how often c was lowered because ``turn`` exceeded 1.5.
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

    state_names = (
        *("smoothness", "_turn", "level", "fall", "spread", "doubted", "anchor", "belief", "t", "factor", "scale"),
        *("alone", "shortened", "taken_back"),
    )
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
        self.recover = real("recover", recover, low=1.0)
        self.patience = positive_integer("patience", patience)
        self.look = positive_integer("look", look)
        self.smoothness: float | None = None  # L
        self._turn = Turn(memory)
        self.fall = 0.0  # how far losses fell on the way from x_{t-1}, over its length, summed up from the anchor on
        self.spread = 0.0  # variance of that sum
        self.doubted = 0  # how many steps ago the recursion was given up, counted from 1; 0 while it goes on
        self.anchor = math.inf  # ||d|| of the last anchor
        self.belief = math.inf  # how many times as large it may have become since
        self._adds_up = False  # does the estimator, at this step, add a difference to what it has?
        self._looks = False  # must this step look at x_{t-1}?
        self._lost = False  # have rows been lost in taking a step back?
        self._seen: int | None = None  # the count of steps after the last ``backward``
        self._open = False  # has it not been followed by ``step`` yet?
        self._hints = WarnOnce()
        self.t = 0
        self.factor = 1.0  # c
        self.scale = 1.0  # what the learning rate is multiplied by besides c
        self.alone = 0
        self.shortened = 0
        self.taken_back = 0
        self.level: list[float] | None = None  # running mean of |f^s|
        multigradient.watch()

    @property
    def turn(self) -> float | None:
        """How much the gradient changes in a step against its size; None before it was seen."""
        return self._turn.value

    @property
    def share(self) -> float:
        """What the next step's learning rate is multiplied by."""
        return self.factor * self.scale

    def backward(self, batch: Any = None) -> Step:
        """Do what ``MultiGradient.backward`` does, after taking the last step back as often as need be.

        Raises:
            NonFiniteError: there is NaN or infinity even next to the last point, and it is not to be skipped. As after
                any error, parameters, counters and optimizer are as they were.
        """
        mg, retries, self._looks, self._lost = self.multigradient, 0, False, False
        if self._open and self._has_moved():
            self._hints.tell(
                "step",
                "the parameters have moved without Safeguard.step(): call it in place of optimizer.step(), or the "
                "guard cannot shorten the steps",
                level=3,
            )
        saved, final = _Saved(self), False
        while True:
            t, account = mg.t, Account()
            judge = self._judge if retries < self.patience and mg.revocable and not final else None
            try:
                step = mg.attempt(batch, account, mend=self._mend, judge=judge, retries=retries)
                break
            except BaseException as error:
                if mg.t > t:  # a signal that had to wait for the end of the step
                    self._close(retries)
                    raise
                if isinstance(error, _Doubtful):
                    self._looks = True
                    self._count(account)
                    continue
                refused = isinstance(error, _Refused | NonFiniteError)
                hopeless = account.paired and account.before is None  # it is no better at x_{t-1}
                if refused and not hopeless and retries < self.patience and self._has_moved():
                    retries += 1
                    self._take_back(saved, error, account, self.shorten**retries if retries < self.patience else 0.0)
                    self._lost = not mg.has_rows
                    self._looks |= self._lost
                    continue
                if isinstance(error, _Refused):  # x_{t-1} was lost in going back: there is nowhere to go
                    logger.warning("the step to %d cannot be taken back and stays: %s", t, error)
                    final = True
                    continue
                saved.restore()
                if isinstance(error, NonFiniteError):
                    self._seen = mg.t
                    return mg.skip(error, anchored=account.anchored)
                raise
        self._close(retries)
        return step

    def settle(self, batch: Any) -> None:
        """Judge the last step too, where no further one will: take it back on one more batch as often as need be.

        ``fit`` does so at its end. As with other measurements, what is evaluated here counts only where it takes
        something back.
        """
        mg, saved = self.multigradient, _Saved(self)
        for retries in range(1, self.patience + 1):
            if not mg.revocable or not self._has_moved():
                return
            account = Account()
            try:
                mg.attempt(batch, account, mend=self._look_back, judge=self._pass_judgement)
            except _Passed:
                return
            except (_Refused, NonFiniteError) as error:
                if account.before is None or mg.last_point is None:  # it is no better at x_{t-1}, or that is lost
                    return
                self._take_back(saved, error, account, self.shorten**retries if retries < self.patience else 0.0)
                self.taken_back += 1
            except BaseException:
                saved.restore()
                raise

    def step(self) -> None:
        """Take the optimizer's step, with a smaller learning rate where that was found to be needed."""
        if self._seen != self.multigradient.t:
            self._hints.tell(
                "backward",
                "Safeguard.step() follows a step that the guard has not seen: call Safeguard.backward(batch) in place "
                "of MultiGradient.backward(batch)",
                level=3,
            )
        with self._scaled_rates():
            self.optimizer.step()
        self._open = False
        brisk = self.turn is not None and self.turn < SHORT
        self.scale = min(1.0, self.scale * self.recover ** (BRISK if brisk else 1))
        mg = self.multigradient
        if self.doubted or not self.smoothness or mg.last_point is None or mg.norm is None:
            return
        taken = distance(mg.objective.parameters, mg.last_point)
        length = min(max(mg.norm, math.sqrt(self._turn.lengths)), self.belief * self.anchor)
        if taken * self.smoothness > self.trust * length:
            self.doubted = 1

    def _mend(self, update: Update) -> Update:
        """Put the batch's own gradient in the place of a recursion that is not trusted."""
        self._adds_up = update.anchor is None and update.keep == 1.0
        alone = self._adds_up and (self.doubted > 0 or self._lost)
        looks = self._looks and update.anchor is None and not update.before
        if not alone and not looks:
            return update
        share = LOOK if self._looks or (self.doubted - 1) % self.look == 0 else 0.0
        return Update(keep=0.0, now=1.0, before=-share, halves=update.halves)

    def _judge(self, seen: Observation) -> None:
        if seen.moved is not None and not math.isfinite(seen.moved):
            raise _Refused("the parameters are not finite")
        level = [0.0] * len(seen.losses) if self.level is None else self.level
        if seen.before is None:
            doubtful = any(now > DOUBTFUL * mean for now, mean in zip(seen.losses.tolist(), level, strict=True))
            if doubtful and self.level is not None and not seen.anchored and not self._looks and self._has_moved():
                raise _Doubtful
            return
        for s, (was, now) in enumerate(zip(seen.before.tolist(), seen.losses.tolist(), strict=True)):
            if now > was + self.rise * abs(was) + self.margin * level[s] and self._has_moved():
                raise _Refused(f"the loss of objective {s} rose from {was:.4g} to {now:.4g} on the same batch")

    def _pass_judgement(self, seen: Observation) -> None:
        self._judge(seen)
        raise _Passed

    def _close(self, retries: int) -> None:
        """Take in what a step that was made has shown, after so many had been taken back."""
        if retries:
            self.taken_back += retries
            self.factor *= self.scale * TAKEN_BACK**retries
            self.scale = self.shorten ** (retries * (retries + 1) / 2)
        if self._lost and self._adds_up:
            self.doubted = max(self.doubted, 1)
        self._seen, self._open = self.multigradient.t, True
        assert self.multigradient.observation is not None
        self._learn(self.multigradient.observation)

    def _learn(self, seen: Observation) -> None:
        if seen.anchored:
            self.anchor = self.multigradient.norm or 0.0
            self.belief *= 2.0
        if seen.anchored or not self._adds_up:
            self.doubted = 0
        elif self.doubted:
            if self.doubted == 1:
                logger.debug("from step %d to the next anchor batches' own gradients are taken", seen.step)
            self.doubted += 1
            self.alone += 1
        self._steady(seen)
        self._follow(seen)
        if seen.smoothness is not None and math.isfinite(seen.smoothness):
            self.smoothness = max(0.9 * (self.smoothness or 0.0), seen.smoothness)
        losses = [abs(loss) for loss in seen.losses.tolist()]
        if self.level is None:
            self.level = losses
        self.level = [0.9 * old + 0.1 * new for old, new in zip(self.level, losses, strict=True)]

    def _steady(self, seen: Observation) -> None:
        """Move c by what the step saw."""
        self.t += 1
        share = min(max(QUICK / self.t, LEAST), MOST)
        turn = self.turn if self._turn.learn(seen) else None
        if turn is None:
            return
        if turn < TINY:
            self.scale = min(self.scale * HURRY, 1.0)
        if turn < SHORT:
            self.factor = min(self.factor * (1.0 + share), 1.0)
        elif turn > LONG:
            self.factor *= 1.0 - share
            self.shortened += 1
            logger.debug("step %d turns the gradient by %.2g times its size, shorter steps", seen.step, turn)

    def _follow(self, seen: Observation) -> None:
        """Give the recursion up where it leads uphill."""
        if seen.anchored or self.doubted or not self._adds_up:
            self.fall = self.spread = 0.0
        elif seen.decrease is not None and seen.moved:
            fell = seen.decrease / seen.moved
            self.fall = FADING * self.fall + fell
            self.spread = FADING**2 * self.spread + fell**2
            if self.fall < -SURE * math.sqrt(self.spread):
                self.doubted, self.belief = 1, 0.5
                logger.debug("up to step %d the losses rise along the recursion's estimate", seen.step)

    def _has_moved(self) -> bool:
        start = self.multigradient.last_point
        return start is not None and distance(self.multigradient.objective.parameters, start) != 0.0  # or NaN

    def _count(self, account: Account) -> None:
        """Put an evaluation that came to nothing into the counters."""
        self.multigradient.samples += account.samples
        self.multigradient.gradients += account.gradients

    @torch.no_grad()
    def _take_back(self, saved: _Saved, error: BaseException, account: Account, left: float) -> None:
        mg = self.multigradient
        saved.keep()
        self._count(account)
        logger.info("the step to %d was taken back and shortened: %s", mg.t, error)
        start = mg.last_point
        assert start is not None
        if not all(finite(parameter.detach()) for parameter in mg.objective.parameters):
            left = 0.0
        for parameter, origin in zip(mg.objective.parameters, start, strict=True):
            parameter.copy_(torch.lerp(origin, parameter.detach(), left) if left else origin)
        self.optimizer.state = defaultdict(dict)

    def _look_back(self, update: Update) -> Update:
        """Evaluate the batch at both points, whatever the estimator wants, in a way that can be taken back."""
        return Update(keep=float(self.multigradient.has_rows), now=1.0, before=-1.0)

    @contextmanager
    def _scaled_rates(self) -> Iterator[None]:
        """Multiply the learning rates for the time of a step, so that schedules see their own."""
        rates = [group["lr"] for group in self.optimizer.param_groups]
        if self.share != 1.0:
            for group in self.optimizer.param_groups:
                group["lr"] = group["lr"] * self.share
        try:
            yield
        finally:
            for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
                group["lr"] = rate


class _Saved:
    """What taking steps back changes besides the guard's own state; parameters are copied once one is."""

    def __init__(self, guard: Safeguard) -> None:
        mg = guard.multigradient
        self._guard, self._momentum, self._taken_back = guard, guard.optimizer.state, guard.taken_back
        self._counts = mg.samples, mg.gradients
        self._values: list[Tensor] = []

    def keep(self) -> None:
        """Copy the parameters, unless they were copied before."""
        if not self._values:
            self._values = [parameter.detach().clone() for parameter in self._guard.multigradient.objective.parameters]

    @torch.no_grad()
    def restore(self) -> None:
        """Put everything back."""
        guard, mg = self._guard, self._guard.multigradient
        if self._values:
            for parameter, value in zip(mg.objective.parameters, self._values, strict=True):
                parameter.copy_(value)
        guard.optimizer.state, guard.taken_back = self._momentum, self._taken_back
        mg.samples, mg.gradients = self._counts


class _Doubtful(Exception):
    """The loss at x_t is so high that a look at x_{t-1} is worth it."""


class _Passed(Exception):
    """The step to x_t may stay."""


class _Refused(Exception):
    """The step to x_t is not to be."""
