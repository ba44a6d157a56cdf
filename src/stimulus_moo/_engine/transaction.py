"""One update of U and x_{t-1}: evaluated, then committed or rolled back."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from stimulus_moo._engine.account import Account
from stimulus_moo._engine.accumulator import Accumulator
from stimulus_moo._engine.anchor_pass import evaluate_anchor
from stimulus_moo._engine.compiled import evaluate_compiled
from stimulus_moo._engine.counted import count_pieces
from stimulus_moo._engine.culprit import find_culprit
from stimulus_moo._engine.differentiation import full_precision, rowwise, times
from stimulus_moo._engine.loss_forms import ALL_LOSSES, AnyRows, LossForm
from stimulus_moo._engine.objective import Evaluated
from stimulus_moo._engine.observation import Piece, Probe, WeightedSum
from stimulus_moo._engine.pieces import cut
from stimulus_moo._engine.precompiled import keep_buffers
from stimulus_moo._engine.replay import Snapshot
from stimulus_moo._engine.row import Row
from stimulus_moo._engine.rows import Rows
from stimulus_moo._engine.sketch import Sketch
from stimulus_moo._engine.store import Store
from stimulus_moo.anchors.variance import Spread
from stimulus_moo.errors import InvalidBatch, InvalidLosses, InvalidOption
from stimulus_moo.estimators import Update

if TYPE_CHECKING:
    from stimulus_moo.distributed.reducer import AllReduce

logger = logging.getLogger("stimulus_moo")


class Transaction:
    """One update: ``evaluate`` builds U_t; then ``commit`` makes it final or ``roll_back`` undoes it."""

    def __init__(
        self,
        store: Store,
        update: Update,
        step: int,
        snapshot: Snapshot,
        probe: Probe | None = None,
        form: LossForm = ALL_LOSSES,
    ) -> None:
        if (update.keep and store.rows is None) or (update.look_back and store.previous is None):
            raise InvalidOption(
                f"the estimator's update at step {step} needs rows or a point that were never stored, found keep="
                f"{update.keep!r}, before={update.before!r}; start with both 0, and set remembers and two_point"
            )
        self.store, self.update, self.step, self.probe, self._snapshot = store, update, step, probe, snapshot
        self.form, self.account = form, Account()
        self.objectives = 0  # S, once the losses were evaluated
        self.pending: AnyRows | None = None  # U_t
        self.evaluated: list[Piece] = []  # the pieces of the batch
        self._merged = False  # was U_{t-1} added with the gradients?
        self._masks: list[int] | None = None  # which objectives reach each parameter, if that was not known before
        self.point: Tensor | None = None  # x_t as one vector, if it is known
        self.products: Tensor | None = None  # Gramian of U_t, or squared norm of its one row, if it is known already
        self.accumulator: Accumulator | None = None  # the last one
        #: whether U_{t-1} is overwritten by this update
        self.in_place = bool(update.keep) and update.anchor is None and not (store.rows is None or store.rows.staged)
        #: whether an undone update loses U_{t-1}: one rule for all failures, since processes must decide alike
        self.drops = False
        self.replayed = True  # did the evaluations at both points draw equally many random numbers?

    @property
    def rows(self) -> AnyRows:
        """U_t, once something was evaluated."""
        assert self.pending is not None
        return self.pending

    @property
    def passes(self) -> int:
        """Per-sample derivatives of one scalar."""
        return self.account.gradients * self.form.rows(self.objectives or self.store.objective.returned)

    def evaluate(self, batch: Any) -> None:
        """Build U_t from U_{t-1} and the gradients; ``account`` has what it cost and saw."""
        if self.store.reducer is not None:
            self.drops = self.in_place
            self.store.reducer.begin(self, batch)
        with keep_buffers() if self.store.objective.compiled else nullcontext():
            if self.update.anchor is not None:
                evaluate_anchor(self)
            else:
                self._evaluate_batch(batch)

    def commit(self, rows: AnyRows | None, *, remember_point: bool) -> None:
        """Make the update final: ``rows`` replace U_{t-1}, or none are kept, and x_t replaces x_{t-1}. Idempotent."""
        store, pending = self.store, self.pending
        if pending is None:
            return
        if remember_point:  # first, since it may run out of memory
            store.remember_point(self.point)
        _, store.layout = self.layout()
        used = [one for one in (pending, store.rows) if one is not rows and self._reusable(one)]
        store.spare = used[0] if used else store.spare
        if isinstance(store.spare, Row):
            store.spare.begin()  # autograd brings its own memory
        store.rows = rows
        self.release()
        if store.reducer is not None:
            store.reducer.commit()

    def release(self) -> None:
        """Let go of the rows of an update that is finished or was only looked at. Idempotent."""
        self.pending = self.accumulator = None
        self.evaluated = []

    def layout(self) -> tuple[int, list[int]]:
        """Return S and, by parameter, the bit mask of the objectives that reach it, as far as it is known."""
        assert self.pending is not None
        return self.objectives, self.known(self.pending.layout)

    def known(self, masks: Sequence[int]) -> list[int]:
        """Return by parameter the mask of all S objectives, given those of the rows: of one row they say little."""
        if not self.form.weighted:
            return list(masks)
        return [mask or new for mask, new in zip(self._masks or self.store.layout, masks, strict=True)]

    def _reusable(self, rows: AnyRows | None) -> bool:
        """Return whether the next update can use this memory; S large rows exist only while weights are solved for."""
        if isinstance(rows, Row):
            return rows is self.store.rows  # one that is not remembered has become the direction
        return rows is not None and not isinstance(rows, Sketch) and (rows.staged or not self.store.one_row)

    def roll_back(self) -> None:
        """Undo ``evaluate``. Rows that are updated in place are dropped: the estimator restarts at the next step."""
        store = self.store
        if store.swap is not None:
            store.swap.back()
        for owner in (self.accumulator, self.pending):
            if (clean_up := getattr(owner, "close", None)) is not None:
                clean_up()
        if store.reducer is not None:
            store.reducer.roll_back(store)
        store.objective.placement.recover()
        self.release()
        if self.drops:
            store.rows = None
            logger.info("step %d was undone; its rows are lost, the estimator restarts at the next step", self.step)

    def open_rows(self, masks: Callable[[], list[int]]) -> AnyRows:
        """Return U_t, with room for what its first losses reach."""
        if self.pending is None:
            self.pending = self.store.blank(self.form, self.objectives, forget=not self.update.keep)
            if isinstance(self.pending, Row):
                self.pending.begin()
        self.pending.expect(masks)
        return self.pending

    def tally(self, spread: Spread) -> Spread:
        """Return the spread of all processes in the middle of an anchor."""
        return spread if self.store.reducer is None else self.store.reducer.tally(self, spread)

    def _evaluate_batch(self, batch: Any) -> None:
        update, probe, reducer = self.update, self.probe, self.store.reducer
        pieces, halves = cut(self.store, batch, halves=probe is not None and probe.halves)
        if self.store.objective.counts is not None:
            pieces = count_pieces(self, pieces)
        own = sum(piece.size for piece in pieces)
        if reducer is not None:
            pieces = reducer.align(self, pieces)
        self.evaluated = pieces
        self._count(own)
        self.drops |= self.in_place and bool(update.now or update.before)  # else it only looks
        if probe is not None:
            probe.two_points = update.look_back
            probe.in_rows = update.recursive and not self.in_place
        # Among several processes each sums n_r times its mean; U_{t-1} is part of the sum if it is overwritten.
        factor = 1.0 if reducer is None else reducer.factor(own)
        keep = update.keep * factor if self.in_place or reducer is None else 0.0
        engine, points = self.store.engine, 2 if update.look_back else 1
        compiled = engine.compiles(self.store.objective.parameters, points, weighted=self.form.weighted)
        if compiled and evaluate_compiled(self, batch, own, keep, factor):
            if probe is not None:
                probe.in_rows |= update.recursive and reducer is None
        else:
            self._evaluate_pieces(pieces, keep, factor, halved=halves[1] > 0)
        if reducer is not None:
            self._reduce(reducer)
        if probe is not None:
            self._finish_probe(probe, halves, own)

    def _reduce(self, reducer: AllReduce) -> None:
        """Make U_t and the account those of all processes."""
        account = self.account
        reducer.sum(self, account, Spread())
        if not account.seen:
            raise InvalidBatch(f"no rank has brought a sample to step {self.step}: every batch is empty or None")
        self.rows.scale(1.0 / account.seen)
        if not self.in_place:
            self.merge(self.update.keep)
        self._count(account.seen)

    def _count(self, samples: int) -> None:
        self.account.samples, self.account.gradients = samples, 2 * samples if self.update.look_back else samples

    def _finish_probe(self, probe: Probe, halves: tuple[int, int], own: int) -> None:
        if self.store.reducer is not None:
            self.store.reducer.sum_vectors(probe.vectors(), own / self.account.seen)
        probe.end(halves)
        old, new, weights = self.store.rows, self.pending, probe.weights
        if probe.in_rows and old is not None and new is not None and weights is not None:
            probe.change = new.distance(old, weights)  # type: ignore[arg-type]  # both are of one kind

    def _evaluate_pieces(self, pieces: list[Piece], keep: float, factor: float, *, halved: bool) -> None:
        update, account, probe, rows = self.update, self.account, self.probe, self.store.rows
        if self.in_place and pieces and rows is not None:
            self.pending = rows
            if keep != 1.0:
                rows.scale(keep)
        if probe is not None:
            probe.begin(halves=halved)
        drawn: list[Tensor] = []  # random states after the evaluation at x_{t-1}
        if update.look_back and self.store.swap is not None:
            snapshot = self.store.objective.current(self._snapshot)  # the estimator may have drawn random numbers
            earlier = Account()
            with self.store.swap:
                for piece in pieces:
                    weight = update.before * factor * piece.fraction
                    self.accumulate(piece, weight, earlier, probe, at_previous=True)
            drawn = snapshot.random_states()
            snapshot.restore()  # the same random draw at x_t; buffers advance only there
            account.before = earlier.losses
        for piece in pieces:
            last = piece is pieces[-1]
            old = keep if last and not self.in_place else 0.0
            self.accumulate(piece, update.now * factor * piece.fraction, account, probe, keep=old, last=last)
        self.replayed = not drawn or all(map(torch.equal, drawn, self._snapshot.random_states()))
        if not self.in_place:
            self.merge(keep)

    def merge(self, keep: float) -> None:
        """Add ``keep`` times U_{t-1}, unless it was added with the gradients."""
        if keep and self.store.rows is not None and not self._merged:
            self.rows.merge(self.store.rows, keep)  # type: ignore[arg-type]  # both are of one kind

    def accumulate(
        self,
        piece: Piece,
        weight: float,
        account: Account,
        probe: Probe | None,
        *,
        at_previous: bool = False,
        keep: float = 0.0,
        last: bool = False,
    ) -> None:
        """Add ``weight`` times the rows of one piece; a weight of 0 only looks at the gradients.

        Where there is one row, ``keep`` times the old row may be added too; ``last`` is the last piece at x_t.
        """
        store = self.store
        evaluated = store.objective.evaluate(piece.content, self.step, piece.counts)
        self._check_count(evaluated, piece)
        graphs = self.form.losses(evaluated, piece.scales, every=not store.objective.placement.independent)
        if piece.share != 1.0:
            graphs = [None if loss is None else times(loss, piece.share) for loss in graphs]
        if piece.scales is None or self.form.weighted:
            masks = partial(store.masks, graphs)
        else:  # room for all, so that the blocks stay the same
            masks = partial(store.masks, evaluated.graphs, piece.counts)
        target = self.open_rows(masks) if store.reducer is None else store.reducer.target(self, masks)
        if piece.size:
            account.add(evaluated.losses, piece.size, piece.counts)
        side = None if probe is None else probe.side(target.objectives, piece, now=not at_previous)
        if not self.form.weighted:
            self._add_rows(target, graphs, weight, side, hooked=evaluated.hooked)
        elif (loss := graphs[0]) is None:
            self._add_nothing(target)
        elif isinstance(target, Row) and side is None and store.engine.accumulates(store.objective.model_parameters):
            if weight:
                old, reducer = store.rows if keep and isinstance(store.rows, Row) else None, store.reducer
                message = reducer.begin_sum(self, account) if last and reducer is not None else None
                take = None if message is None else message.take
                target.accumulate(loss, weight, old, keep, last=last and reducer is None, take=take)
                self._merged = old is not None
        else:
            self._add_row(piece, target, loss, weight, side)

    def _add_rows(
        self, target: AnyRows, graphs: Sequence[Tensor | None], weight: float, side: WeightedSum | None, *, hooked: bool
    ) -> None:
        """Differentiate all losses and add ``weight`` times their gradients."""
        engine, parameters = self.store.engine, self.store.objective.model_parameters
        assert isinstance(target, Rows)
        if target.staged and not self.store.sharded:
            jacobian = engine.jacobian(graphs, parameters, hooked=hooked)
            if side is not None:
                side.add_jacobian(jacobian)
            if weight:
                target.add_jacobian(jacobian, weight)
        else:
            self.accumulator = Accumulator(target, weight, self.step, side)
            engine.stream(graphs, parameters, self.accumulator, hooked=hooked)
            self.accumulator.side = None  # the probe frees its vectors
            target.settle()

    def _add_row(self, piece: Piece, target: AnyRows, loss: Tensor, weight: float, side: WeightedSum | None) -> None:
        """Differentiate one loss and add ``weight`` times its gradient."""
        objective = self.store.objective
        with full_precision(objective.devices):
            gradients = next(rowwise([loss], objective.model_parameters, objective.placement))
        checks = side is not None or (isinstance(target, Rows) and target.sums_at_once)
        if checks and not target.finite(gradient for gradient in gradients if gradient is not None):
            raise find_culprit(self, [piece])
        if side is not None:
            side.add_row(0, gradients)
        if isinstance(target, Row):
            target.add(0, gradients, weight)
        else:  # of several processes, each of which takes part in every row
            self.accumulator = Accumulator(target, weight, self.step)
            self.accumulator.take_row(0, gradients)
            target.settle()

    def _add_nothing(self, target: AnyRows) -> None:
        """Pass over a piece in which no loss has a count; several processes take part in every row."""
        if isinstance(target, Rows):
            self.accumulator = Accumulator(target, 0.0, self.step)
            self.accumulator.skip_row(0)

    def _check_count(self, evaluated: Evaluated, piece: Piece) -> None:
        """Note S, and at the first step which parameters each loss reaches, where only their sum is differentiated."""
        found = len(evaluated.losses)
        if self.objectives and found != self.objectives:
            raise InvalidLosses(f"losses returned {self.objectives} losses before and {found} now")
        self.objectives = found
        if self.form.weighted and self._masks is None and not any(self.store.layout):
            self._masks = self.store.masks(evaluated.graphs, piece.counts)
