"""A proposed step: estimated and, on request, weighed; then committed or discarded."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from stimulus_moo._engine.differentiation import full_precision
from stimulus_moo._engine.exclusive import evaluating, exclusive
from stimulus_moo._engine.interrupts import DeferredInterrupts
from stimulus_moo._engine.loss_forms import LossForm, WeightedLoss
from stimulus_moo._engine.loss_names import name_losses
from stimulus_moo._engine.observation import Observation, Probe
from stimulus_moo._engine.replay import Snapshot
from stimulus_moo._engine.row import Row
from stimulus_moo._engine.solving import ONE, combine, form_of, loss_values, needs_memory, remember, solve
from stimulus_moo._engine.step import Step
from stimulus_moo._engine.transaction import Transaction
from stimulus_moo._engine.warnings import replay_message
from stimulus_moo.errors import InvalidOption, NonFiniteError, NotCopyable
from stimulus_moo.estimators import Update
from stimulus_moo.state import Stateful

if TYPE_CHECKING:
    from stimulus_moo.multigradient import MultiGradient


class Proposal:
    """A step that was evaluated and is not final: look at it, then call ``commit`` or ``discard``.

    Until ``commit``, ``p.grad``, the counters and everything that later steps depend on are unchanged; buffers and the
    random state have advanced as in a forward pass, and ``discard`` restores them. Rows above the staging threshold are
    updated in place; after ``discard`` the estimator restarts.

    Attributes:
        update: what the step does to the rows.
        wanted: what the estimator asked for; ``update`` differs from it where ``propose`` was told so.
        error: the ``NonFiniteError`` of an evaluation that met NaN or infinity, or None. ``commit`` then raises it or
            skips the step, as ``on_nonfinite`` says.

    >>> import torch
    >>> from stimulus_moo import MiniBatch, MultiGradient
    >>> model = torch.nn.Linear(2, 2)
    >>> mg = MultiGradient(model, lambda m, x: m(x).square().mean(0), MiniBatch())
    >>> proposal = mg.propose(torch.ones(4, 2))
    >>> len(proposal.observation.losses), mg.samples
    (2, 0)
    >>> proposal.discard()
    >>> model.weight.grad is None, mg.propose(torch.ones(4, 2)).commit().anchored, mg.samples
    (True, False, 4)
    """

    def __init__(self, multigradient: MultiGradient, *, observes: bool) -> None:
        mg = self._mg = multigradient
        self.exclusive = mg.exclusive
        self.update: Update | None = None
        self.wanted: Update | None = None
        self.error: NonFiniteError | None = None
        self.open = True  # neither committed nor undone
        self._settled = False  # was it discarded, or its error reported?
        self._t = mg.t
        self._last = mg.weights, mg.sq_norm  # of the step before
        self.observes = observes  # are distances and changes measured?
        self._moved: float | None = None
        self._probe: Probe | None = None
        self._observation: Observation | None = None
        self._transaction: Transaction | None = None
        #: lambda_t, d_t (None where it is the one row itself), ||d_t||^2
        self._combined: tuple[Tensor, list[Tensor | None] | None, float] | None = None
        self._solved = False  # were the weights solved for, before the step or by it?
        self._before = 0, 0, 0  # the cost of solving before the step
        self._grad_mode = torch.is_grad_enabled()
        self._snapshot = mg.objective.snapshot()
        self._engine = mg.store.engine.name, mg.store.engine.uncompiled
        self._states = [(part, part.state_dict()) for part in mg.stateful_parts]

    def __getstate__(self) -> dict[str, Any]:
        if self.open:
            raise NotCopyable("a MultiGradient with an open proposal cannot be copied; commit or discard it first")
        return self.__dict__

    @property
    def observation(self) -> Observation | None:
        """What the evaluation showed; None where it failed."""
        if self._observation is None and self.error is None:
            self._observation = self._observe()
        return self._observation

    @property
    def cost(self) -> tuple[int, int, int]:
        """Samples, per-sample multi-gradients and passes evaluated for the proposal."""
        _, gradients, passes = self._before
        if self._transaction is None:
            return 0, gradients, passes
        account = self._transaction.account
        return account.samples, account.gradients + gradients, self._transaction.passes + passes

    @property
    def failed_at_previous_point(self) -> bool:
        """Whether the evaluation failed at x_{t-1} already, so that going back cannot help."""
        transaction = self._transaction
        return transaction is not None and transaction.update.look_back and transaction.account.before is None

    @property
    def overwrites(self) -> bool:
        """Whether ``discard`` drops the rows, since they are being updated in place."""
        return self._transaction is not None and self._transaction.drops

    def state_before(self, part: Stateful) -> dict[str, Any]:
        """Return the state that the estimator or the weighting had before the proposal."""
        return next((state for own, state in self._states if own is part), None) or part.state_dict()

    def evaluate(
        self, batch: Any, *, fresh: bool = False, look_back: bool = False, update: Update | None = None
    ) -> None:
        """Evaluate the estimator's update, or the one given; called by ``MultiGradient``, which holds the lock."""
        try:
            with torch.no_grad():
                if self._mg.estimator.prepares:
                    self._measure_move()
                self.update = self._choose(fresh, look_back) if update is None else update
                if self.observes and (self.update.look_back or self.update.anchor is not None):
                    self._measure_move()
                self._evaluate(batch, self.update, stepping=update is None)
        except BaseException as error:
            if not self._undone(error):
                raise

    def _measure_move(self) -> None:
        previous = self._mg.store.previous
        if self._moved is None and previous is not None:
            self._moved = self._mg.objective.distance(previous)

    def _evaluate(self, batch: Any, update: Update, *, stepping: bool) -> None:
        mg = self._mg
        form, replay = form_of(mg, self._t, update, stepping=stepping), self._snapshot
        self._solved = not form.weighted
        if self._solved and (form.sketched or needs_memory(mg, update)):
            form, replay = self._solve_before(form, batch, replay)
        self._probe = self._new_probe(update, form)
        self._transaction = Transaction(mg.store, update, self._t, replay, self._probe, form)
        self._transaction.evaluate(batch)
        if not self._transaction.replayed:
            mg.warn("replay", replay_message(self._t))

    def _solve_before(self, form: LossForm, batch: Any, replay: Snapshot) -> tuple[LossForm, Snapshot]:
        """Solve for the weights on the gradients of what the step is about to evaluate; it then follows lambda . F."""
        mg, update, replay = self._mg, self.update, self._mg.objective.current(replay)
        assert update is not None
        state = None if update.anchor is None else mg.estimator.state_dict()
        now = 1.0 if update.keep or update.look_back else update.now
        rows_only = Update(keep=0.0, now=now, anchor=update.anchor)
        self._transaction = solving = Transaction(mg.store, rows_only, self._t, replay, None, form)
        solving.evaluate(batch)
        if mg.store.reducer is not None:
            mg.store.reducer.proceed()
        replay.restore()
        weights = solve(mg, solving, self._t)  # which may draw from the global random state
        self._before = self.cost
        solving.release()
        if state is not None:  # the step draws the same anchor
            mg.estimator.load_state_dict(state)
        return WeightedLoss(weights), replay

    @evaluating
    def weigh(self) -> None:
        """Compute weights and direction; an overflow ends up in ``error``. ``commit`` calls this if needed."""
        self._weigh()

    def _weigh(self) -> None:
        mg, transaction = self._mg, self._transaction
        if not self.open or self._combined is not None or transaction is None or transaction.pending is None:
            return
        kept = transaction.form.weights_for(transaction.objectives)
        if kept is not None and transaction.products is not None:  # which are finite, or they would not be used
            self._combined = kept, None, float(transaction.products)
            return
        try:
            with torch.no_grad(), full_precision(mg.objective.devices):
                self._combined = combine(mg, transaction, self._t)
        except BaseException as error:
            if not self._undone(error):
                raise

    @evaluating
    def commit(self) -> Step:
        """Weigh the objectives, write d_t into every ``p.grad`` and make the step final.

        Raises:
            NonFiniteError: a loss, a gradient or the direction is NaN or infinite, and is not to be skipped.
            InvalidOption: the proposal was committed or discarded before.
        """
        return self.finish()

    def finish(self) -> Step:
        """Do what ``commit`` does; called by ``MultiGradient``, which holds the lock."""
        self._weigh()
        if self.error is not None and not self._settled:
            self._settled = True
            return self._skip(self.error)
        transaction = self._transaction
        if not self.open or transaction is None or self._combined is None:
            raise InvalidOption("this proposal was committed or discarded before; call propose(batch) again")
        try:
            return self._write(transaction, *self._combined)
        except BaseException as error:
            self._undone(error)
            raise

    def _write(
        self, transaction: Transaction, weights: Tensor, direction: list[Tensor | None] | None, sq_norm: float
    ) -> Step:
        """Let every part learn from the step, then write it."""
        mg, account, losses = self._mg, transaction.account, transaction.account.losses
        assert losses is not None
        observation = self.observation if mg.watched or mg.estimator.observes else None
        if mg.estimator.observes and observation is not None:
            mg.estimator.learn(observation)
        anchored, cost = transaction.update.anchor is not None, self.cost
        mg.estimator.record(sq_norm, anchored=anchored)
        if mg.reweigh is not None and mg.reweigh.learns:
            before = (observation or account).before  # an observation has them on the CPU
            now = (observation.losses if observation else losses).tolist()
            was = None if before is None else before.tolist()
            mg.reweigh.learn(now, was, cost[2], solved=self._solved, anchored=anchored)
        length = torch.scalar_tensor(sq_norm, dtype=torch.float64)
        moved, names = weights.to(losses, copy=True), mg.objective.loss_names or ()
        step = Step(losses, moved, length, anchored, self._solved, names=names)
        samples, gradients, passes = mg.samples + cost[0], mg.gradients + cost[1], mg.passes + cost[2]
        remembered, values = remember(mg, transaction, direction, weights), loss_values(mg, transaction)
        shared, row = isinstance(remembered, Row), transaction.rows  # is its memory that of the direction?
        flat = row.flat if direction is None and isinstance(row, Row) else None
        parts = row.parts if direction is None and flat is None and isinstance(row, Row) else direction

        def write() -> None:
            transaction.commit(remembered, remember_point=mg.estimator.two_point)
            if flat is not None:
                mg.objective.write_flat(flat)
            elif parts is not None:
                mg.objective.write_gradients(parts, copy=shared)
            mg.objective.count, mg.store.loss_values = len(losses), values
            mg.t, mg.samples, mg.gradients, mg.passes = self._t + 1, samples, gradients, passes
            mg.weights, mg.sq_norm = weights if transaction.form.weighted else weights.clone(), sq_norm
            mg.observation = observation if mg.watched else None
            mg.policy.in_a_row = 0
            self.open = False
            self._combined = None

        try:
            write()
        except BaseException:  # write is idempotent: complete it before the interrupt takes effect
            with DeferredInterrupts():
                write()
            raise
        return step

    @exclusive
    def discard(self) -> None:
        """Leave everything as it was before ``propose``. Idempotent; does nothing after ``commit``."""
        self.undo()

    def undo(self) -> None:
        """Do what ``discard`` does; called by ``MultiGradient``, which holds the lock."""
        self._settled = True
        if self.open:
            self._undo(None)

    def _skip(self, error: NonFiniteError) -> Step:
        """Return the record of a skipped step, or raise the error, as ``on_nonfinite`` says."""
        mg = self._mg
        if not mg.policy.skips(error):
            raise error
        mg.objective.write_gradients([None] * len(mg.objective.parameters))
        objectives = mg.objective.count or mg.objective.returned or error.objectives
        nothing = torch.full((objectives,), torch.nan)
        anchored = self.update is not None and self.update.anchor is not None
        length, names = torch.tensor(torch.nan, dtype=torch.float64), mg.objective.loss_names or ()
        return Step(nothing, nothing.clone(), length, anchored, False, skipped=True, names=names)

    def _choose(self, fresh: bool, look_back: bool) -> Update:
        """Return the estimator's update, changed as asked; it restarts where the rows it needs were lost."""
        mg = self._mg
        update = self._ask(self._t)
        if fresh and update.recursive:
            return Update(keep=0.0, now=1.0, look_back=look_back, halves=update.halves)
        if self._t and update.keep and mg.estimator.remembers and mg.store.rows is None:
            self._restore_states()
            update = self._ask(0)
        if look_back and update.anchor is None and mg.store.previous is not None:
            update = replace(update, look_back=True)
        return update

    def _ask(self, t: int) -> Update:
        if self._moved is not None:
            self._mg.estimator.prepare(self._moved)
        self.wanted = self._mg.estimator.update(t)
        return self.wanted

    def _new_probe(self, update: Update, form: LossForm) -> Probe | None:
        if update.anchor is not None:
            wanted = update.anchor.estimates_variance
        else:
            wanted = update.halves or (update.look_back and self.observes)
        weights = ONE if form.weighted else self._last[0]
        own = self._mg.objective
        return Probe(weights, own.parameters, halves=update.halves, totals=own.placement.totals) if wanted else None

    def _observe(self) -> Observation:
        assert self._transaction is not None
        account, anchored = self._transaction.account, self._transaction.update.anchor is not None
        assert account.losses is not None
        probe = None if anchored else self._probe  # at an anchor it compares pieces of the anchor
        measured = () if probe is None else (probe.change, probe.change_variance, probe.variance)
        before = None if account.before is None else account.before.cpu()
        losses = account.losses.cpu()  # copied once for all that read them
        own = self._t, account.samples, self.cost[1], anchored
        return Observation(*own, losses, before, *self._last, self._moved, *measured)

    def _undone(self, error: BaseException) -> bool:
        """Undo the proposal after an error; return whether it is a ``NonFiniteError``, which is kept in ``error``."""
        if self.open:
            self._undo(error)
        name_losses(error, self._mg.objective.loss_names or ())
        if isinstance(error, NonFiniteError):
            self.error = error
        return self.error is error

    def _undo(self, error: BaseException | None) -> None:
        mg = self._mg
        torch.set_grad_enabled(self._grad_mode)  # a signal may interrupt the exit of a context
        if error is not None and mg.store.reducer is not None:
            mg.store.reducer.abandon(mg.store, error)
        if self._transaction is not None:
            self._transaction.roll_back()
        with DeferredInterrupts():
            self._snapshot.restore()
            mg.store.engine.name, mg.store.engine.uncompiled = self._engine
            self._restore_states()
            self.open = False

    def _restore_states(self) -> None:
        for part, state in self._states:
            part.load_state_dict(state)
