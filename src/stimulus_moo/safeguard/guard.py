"""The safeguard: watches the steps of an optimizer and a MultiGradient and applies four rules to them."""

import logging
import math
from collections import defaultdict
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from stimulus_moo._engine.nonfinite import finite
from stimulus_moo._engine.proposal import Proposal
from stimulus_moo._engine.step import Step
from stimulus_moo._engine.warnings import WarnOnce
from stimulus_moo.errors import DOCS, NotCopyable
from stimulus_moo.multigradient import MultiGradient
from stimulus_moo.optim.checks import check_pair
from stimulus_moo.safeguard.drift import Drift
from stimulus_moo.safeguard.long_steps import LongSteps
from stimulus_moo.safeguard.rollback import PATIENCE, Rollback
from stimulus_moo.safeguard.step_length import StepLength
from stimulus_moo.state import Stateful

logger = logging.getLogger("stimulus_moo")

#: while the recursion is suspended, one step in so many evaluates two points
LOOK_EVERY = 4


class Safeguard(Stateful):
    r"""Makes a variance-reduced method safe at any step size, using what a batch shows at two points.

    It attaches itself: the training loop stays ``mg.backward(batch); optimizer.step()``, and ``detach`` removes it.
    Each of its four rules is a class of ``stimulus_moo.safeguard``, with its formulas and constants:

    - ``LongSteps``: after a step too long for the recursion, the batch's own gradient is used until the next anchor.
    - ``Drift``: the same, after the losses of the batches have risen step after step.
    - ``StepLength``: while steps turn the gradient by more than 1.5 times its size, the learning rate is lowered.
    - ``Rollback``: a step that made a loss much worse, or led to NaN, is taken back and shortened.

    The rules use evaluations that two-point estimators (``Recursive``, ``Page``, ``Storm``, ``Filtered``, ``Adaptive``
    once losses stall) make anyway; those made to take a step back or to look into a high loss are added to the
    counters. Unless that happens or a rule fires, parameters and optimizer are the same as without the safeguard, bit
    for bit. With one-point estimators there is nothing to compare, and nothing is done. The first two rules apply to
    the recursive differences of ``Recursive`` and ``Page`` only; ``Adaptive`` judges its differences itself.

    Steps are not simply kept below 1/L, because that trains networks badly: the shorter the steps, the sharper the
    valleys they lead into, and the larger L.

    Args:
        optimizer: any ``torch.optim`` optimizer on the model's parameters.
        multigradient: the ``MultiGradient`` that fills their gradients.

    Attributes:
        smoothness: L as observed so far, or None.
        turn: change of the gradient in a step relative to its size, or None.
        alone: how many steps used their batch's own gradient.
        factor, shortened: c, and how often it was lowered.
        taken_back: how many steps were taken back.
        lr_scale: what the next step's learning rate is multiplied by.

    >>> import torch
    >>> from stimulus_moo import MultiGradient, Recursive, Safeguard
    >>> _ = torch.manual_seed(0)
    >>> model = torch.nn.Linear(3, 2)
    >>> x, y = torch.randn(64, 3), torch.randn(64, 2)
    >>> mg = MultiGradient(model, lambda m, b: (m(b[0]) - b[1]).square().mean(0), Recursive([(x, y)], period=8))
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=30.0)  # far too large
    >>> guard = Safeguard(optimizer, mg)
    >>> for _ in range(5):
    ...     for batch in zip(x.split(8), y.split(8)):
    ...         step = mg.backward(batch)
    ...         optimizer.step()
    >>> bool(step.losses.max() < 2), guard.taken_back > 0
    (True, True)
    >>> guard.detach()
    """

    state_names = ("long_steps", "drift", "step_length", "rollback", "suspended", "alone")
    count_names = ("suspended", "alone")

    def __init__(self, optimizer: Optimizer, multigradient: MultiGradient) -> None:
        check_pair(optimizer, multigradient)
        self.optimizer, self.multigradient = optimizer, multigradient
        self.long_steps, self.drift = LongSteps(), Drift()
        self.step_length, self.rollback = StepLength(), Rollback()
        self.suspended = 0  # how many steps ago the recursion was suspended, counted from 1; 0 while it is in use
        self.alone = 0
        self._armed = False  # was there a backward that no step of the optimizer has followed yet?
        self._rates: list[Any] = []  # learning rates to restore after a step
        self._warn = WarnOnce()
        multigradient.attach(self)
        self._hooks = [
            optimizer.register_step_pre_hook(self._before_step),
            optimizer.register_step_post_hook(self._after_step),
        ]
        if multigradient.checks and not multigradient.estimator.two_point:
            multigradient.warn("guard", _no_use(type(multigradient.estimator).__name__))

    smoothness = property(lambda self: self.long_steps.smoothness)
    turn = property(lambda self: self.step_length.turn)
    factor = property(lambda self: self.step_length.factor)
    shortened = property(lambda self: self.step_length.shortened)
    taken_back = property(lambda self: self.rollback.taken_back)
    lr_scale = property(lambda self: self.step_length.factor * self.rollback.scale)

    def __getstate__(self) -> Any:
        if self._hooks:  # torch does not copy the hooks of an optimizer: the copy would not act
            raise NotCopyable(
                "an attached Safeguard cannot be copied or pickled, nor can its MultiGradient; call detach() first, or "
                "save state_dict() and load it into new objects"
            )
        return self.__dict__

    def detach(self) -> None:
        """Remove the safeguard from the optimizer and the MultiGradient. Idempotent."""
        if self._hooks:
            self._restore_rates()
            self.multigradient.detach()
            for hook in self._hooks:
                hook.remove()
            self._hooks = []

    def backward(self, batch: Any) -> Step:
        """Make a step of ``mg.backward``: take the last one back as often as needed, then commit; called by ``mg``."""
        mg, t = self.multigradient, self.multigradient.t
        self._restore_rates()
        if self._armed and self._has_moved():
            self._warn(
                "optimizer",
                "the parameters moved without a step of the optimizer that Safeguard is attached to, so it cannot "
                "shorten the steps; attach it to the optimizer that trains the model",
            )
        retreat = _Retreat(self)
        try:
            proposal, retries, lost = self._acceptable(batch, retreat)
            if proposal.error is not None:
                retreat.undo()
                self._armed = False
            step = proposal.commit()
        except BaseException:
            if mg.t == t:
                mg.discard()
                retreat.undo()
            else:  # a signal that was deferred to the end of the step
                self._learn(proposal, retries, lost)
            raise
        if not step.skipped:
            self._learn(proposal, retries, lost)
        return step

    def settle(self, batch: Any) -> None:
        """Check the last step of a training on one more batch; evaluations count only where it is taken back."""
        mg, retreat = self.multigradient, _Retreat(self)
        try:
            for retries in range(1, PATIENCE + 1):
                if not self._has_moved():
                    return
                proposal = mg.compare(batch)
                proposal.discard()
                reason = self._reason(proposal)
                if reason is None or proposal.failed_at_previous_point:
                    return
                retreat.take_back(proposal, reason, self.rollback.left(retries))
                self.rollback.taken_back += 1
        except BaseException:
            mg.discard()
            retreat.undo()
            raise

    def _acceptable(self, batch: Any, retreat: "_Retreat") -> tuple[Proposal, int, bool]:
        """Return a proposal that may be committed, after how many retries, and whether rows were lost on the way.

        A proposal with an error is returned where going back does not help.
        """
        mg, retries, looks, lost = self.multigradient, 0, False, False
        while True:
            resting = self.suspended > 0 or lost
            look_back = looks or (self.suspended > 0 and (self.suspended - 1) % LOOK_EVERY == 0)
            proposal = mg.propose(batch, fresh=resting, look_back=look_back)
            seen = proposal.observation
            doubtful = seen is not None and retries < PATIENCE and not looks and self.rollback.doubtful(seen)
            if doubtful and self._has_moved():
                proposal.discard()
                retreat.count(proposal)
                looks = True
                continue
            reason = self._reason(proposal) if retries < PATIENCE else None
            if reason is None:
                proposal.weigh()
                reason = None if proposal.error is None else str(proposal.error)
            if reason is None or proposal.failed_at_previous_point or retries == PATIENCE or not self._has_moved():
                return proposal, retries, lost
            proposal.discard()
            retries += 1
            retreat.take_back(proposal, reason, self.rollback.left(retries))
            lost = mg.store.rows is None
            looks |= lost

    def _reason(self, proposal: Proposal) -> str | None:
        """Return why the step to x_t should be taken back; None where it may stay."""
        if proposal.error is not None:
            return str(proposal.error)
        assert proposal.observation is not None
        reason = self.rollback.reason(proposal.observation)
        return reason if reason is not None and self._has_moved() else None

    def _learn(self, proposal: Proposal, retries: int, lost: bool) -> None:
        seen, update = proposal.observation, proposal.wanted
        assert seen is not None
        assert update is not None
        if retries:
            self.step_length.factor *= self.rollback.shorten(retries)
        if lost and update.recursive:
            self.suspended = max(self.suspended, 1)
        self._armed = True
        if seen.anchored:
            self.long_steps.anchored(self.multigradient.norm or 0.0)
        if not update.recursive:
            self.suspended = 0
        elif self.suspended:
            if self.suspended == 1:
                logger.debug("from step %d to the next anchor the batches' own gradients are used", seen.step)
            self.suspended += 1
            self.alone += 1
        turn = self.step_length.learn(seen)
        if self.suspended or not update.recursive or self.multigradient.estimator.judges:
            self.drift.reset()
        elif self.drift.uphill(seen):
            self.suspended = 1
            self.long_steps.distrust()
        self.long_steps.learn(seen)
        self.rollback.learn(seen, turn)

    def _has_moved(self) -> bool:
        start = self.multigradient.store.previous
        return start is not None and self.multigradient.objective.distance(start) != 0.0  # or NaN

    def _before_step(self, optimizer: Optimizer, *_: Any) -> None:
        """Multiply the learning rates for the duration of a step, so that schedules see their own."""
        self._restore_rates()
        if self._armed and self.lr_scale != 1.0:
            self._rates = [group["lr"] for group in optimizer.param_groups]
            for group in optimizer.param_groups:
                group["lr"] = group["lr"] * self.lr_scale

    def _after_step(self, *_: Any) -> None:
        self._restore_rates()
        if not self._armed:
            return
        self._armed = False
        self.rollback.recover(self.turn)
        mg = self.multigradient
        if self.suspended or not self.smoothness or mg.store.previous is None or mg.norm is None or mg.estimator.judges:
            return
        taken = mg.objective.distance(mg.store.previous)
        if self.long_steps.too_long(taken, max(mg.norm, math.sqrt(self.step_length.lengths))):
            self.suspended = 1

    def _restore_rates(self) -> None:
        for group, rate in zip(self.optimizer.param_groups, self._rates, strict=bool(self._rates)):
            group["lr"] = rate
        self._rates = []


def _no_use(estimator: str) -> str:
    return (
        f"Safeguard has nothing to judge with {estimator}, which evaluates a batch at one point only; leave it out, or "
        f"use Recursive, Page or Storm; see {DOCS}guides/step-size.html"
    )


class _Retreat:
    """Takes steps back, and can undo that: what it changes besides the state of the rules."""

    def __init__(self, guard: Safeguard) -> None:
        mg = guard.multigradient
        self._guard, self._state, self._taken_back = guard, guard.optimizer.state, guard.rollback.taken_back
        self._counts = mg.samples, mg.gradients, mg.passes
        self._values: list[Tensor] = []

    def count(self, proposal: Proposal) -> None:
        """Count the evaluations of a proposal that was discarded."""
        mg = self._guard.multigradient
        samples, gradients, passes = proposal.cost
        mg.samples, mg.gradients, mg.passes = mg.samples + samples, mg.gradients + gradients, mg.passes + passes

    @torch.no_grad()
    def take_back(self, proposal: Proposal, reason: str, left: float) -> None:
        """Move the parameters back until only the share ``left`` of the step remains, and drop the momentum."""
        guard, mg = self._guard, self._guard.multigradient
        parameters, start = mg.objective.parameters, mg.store.previous
        assert start is not None
        if not self._values:
            self._values = [parameter.detach().clone() for parameter in parameters]
        self.count(proposal)
        logger.info("the step to %d was taken back and shortened: %s", mg.t, reason)
        if any(mg.objective.placement.totals([float(not all(finite(value.detach()) for value in parameters))])):
            left = 0.0
        for parameter, origin in zip(parameters, start, strict=True):
            parameter.copy_(torch.lerp(origin, parameter.detach(), left) if left else origin)
        guard.optimizer.state = defaultdict(dict)

    @torch.no_grad()
    def undo(self) -> None:
        """Restore parameters, optimizer state and counters. Idempotent."""
        guard, mg = self._guard, self._guard.multigradient
        if self._values:
            for parameter, value in zip(mg.objective.parameters, self._values, strict=True):
                parameter.copy_(value)
        guard.optimizer.state, guard.rollback.taken_back = self._state, self._taken_back
        mg.samples, mg.gradients, mg.passes = self._counts
