"""The rows U and the last point x_{t-1}: changed by one estimator's update at a time, or not at all."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from stimulus_moo._engine.accumulator import Accumulator, Undo, non_finite_gradient
from stimulus_moo._engine.compiler import Compiler
from stimulus_moo._engine.differentiation import Engine
from stimulus_moo._engine.finite import finite
from stimulus_moo._engine.memory import MemoryEstimate
from stimulus_moo._engine.objective import Objective, reaches_nothing
from stimulus_moo._engine.observation import Probe, Side
from stimulus_moo._engine.reach import reached
from stimulus_moo._engine.replay import Snapshot, swapped
from stimulus_moo._engine.rows import Rows, Storage
from stimulus_moo.anchors import Anchor, Spread
from stimulus_moo.data.batches import leading_size, split
from stimulus_moo.data.partition import ALL, Partition
from stimulus_moo.errors import InvalidBatch, InvalidLosses, InvalidOption
from stimulus_moo.estimators import Update

#: Up to this many entries of U (S x P) an update is built beside the old rows, and taking it back is exact. Above, rows
#: are updated in place, so that no second S x P matrix exists; a failed update is then taken back by evaluating it
#: again with the opposite sign, which is exact to rounding.
STAGED_ENTRIES = 1 << 16

#: What adding and subtracting again may cost rows updated in place, against their length: more, and they are dropped.
LOSS = 1e-3

#: Up to this many entries of U the compiled engine serves: it makes a second U for a moment.
COMPILED_ENTRIES = 1 << 22


@dataclass
class Account:
    """What one update cost and saw."""

    samples: int = 0
    gradients: int = 0
    anchored: bool = False
    paired: bool = False  # is a batch evaluated at x_{t-1} too?
    losses: Tensor | None = None  # means at x_t over all samples evaluated there
    before: Tensor | None = None  # the batch's losses at x_{t-1}, where it was evaluated there too
    seen: int = field(default=0, repr=False)

    def count(self, samples: int, update: Update) -> None:
        """Take note of how many samples an update evaluates."""
        self.samples, self.gradients = samples, 2 * samples if update.before else samples

    def add(self, losses: Tensor, size: int) -> None:
        """Take the losses of a piece into the mean."""
        self.seen += size
        self.losses = losses if self.losses is None else self.losses + (losses - self.losses) * (size / self.seen)


@dataclass(frozen=True)
class Piece:
    """A part of the step's batch that is evaluated at once."""

    content: Any
    size: int
    share: float = 1.0  # of the batch
    half: int = 0  # which half of the batch it belongs to, where it was cut in two
    share_of_half: float = 1.0


@dataclass(frozen=True)
class Entry:
    """One evaluation whose gradients were added in place, and what it takes to do it again."""

    piece: Piece
    at_previous: bool
    intake: Accumulator
    guard: Snapshot


class Ledger:
    """Keeps U and x_{t-1}, and applies updates to them as transactions: ``apply``, then ``commit`` or ``roll_back``.

    This is the ledger of one process. Where several make one step, each builds its own part of the update, and what a
    subclass replaces (``_pieces``, ``_own``, ``_join_batch``, ``_join_anchor``, ``_tally``) joins them: distributed/.
    """

    share: Partition = ALL
    #: whether the two halves of a batch can be compared, which is about this process's part of it
    splits = True

    def __init__(self, objective: Objective, engine: Engine, storage: Storage | None = None) -> None:
        self.objective = objective
        self.engine = engine
        self.compiler = Compiler(objective, engine)
        self.storage = storage or Storage()
        self.rows: Rows | None = None  # U_{t-1}, where an estimator needs it again
        self.previous: list[Tensor] | None = None  # x_{t-1}
        self.layout = [0] * len(objective.parameters)  # every reach seen so far: how the rows are cut into blocks
        self._spare: Rows | None = None  # memory for the next update
        self._pending: Rows | None = None  # U_t before commit
        self._journal: list[Entry] = []  # what was added in place
        self._kept = 1.0  # what the rows are multiplied by
        self._reach: list[int] = []  # what the rows reached before they were updated in place
        self._torn = False  # is a change in place under way?
        self._visit: swapped | None = None  # the last exchange of x_t and x_{t-1}
        self._intake: Accumulator | None = None  # the last one

    def apply(
        self, update: Update, batch: Any, step: int, guard: Snapshot, account: Account, probe: Probe | None = None
    ) -> None:
        """Build U_t from U_{t-1}; nothing is final before ``commit``.

        What it costs and sees goes to ``account``; a probe looks on where there is a batch.
        """
        if (update.keep and self.rows is None) or (update.before and self.previous is None):
            raise InvalidOption(
                f"the estimator's update at step {step} needs rows or a point that were never stored, found "
                f"keep={update.keep!r}, before={update.before!r}; start from keep=0 and before=0, and let the "
                "estimator set remembers and two_point"
            )
        self._kept = update.keep
        if update.anchor is not None:
            self._apply_anchor(update, step, account, probe)
            self._merge(update)
        else:
            self._apply_batch(update, batch, step, guard, account, probe)

    def gramian(self, step: int) -> Tensor:
        """Return U_t U_t^T.

        Raises:
            NonFiniteError: a row holds NaN or infinity.
        """
        gramian = self.pending.gramian()
        if not math.isfinite(gramian.sum()) or not all(self.objective.decisive):
            bad = self.pending.first_non_finite()
            if bad is not None:
                raise non_finite_gradient(bad, step)
        return gramian

    def same(self, weights: Tensor) -> Tensor:
        """Return the weights that all who make this step take."""
        return weights

    @property
    def pending(self) -> Rows:
        """U_t of the update under way."""
        assert self._pending is not None
        return self._pending

    def commit(self, *, remember_rows: bool, remember_point: bool) -> None:
        """Make the update final, U_t for U_{t-1} and x_t for x_{t-1}; to be called again where a signal has cut it."""
        if self._pending is None:
            return
        if remember_point:  # first: it is what may run out of memory
            if self.previous is None:
                self.previous = [parameter.detach().clone() for parameter in self.objective.parameters]
            else:
                with torch.no_grad():
                    torch._foreach_copy_(self.previous, list[Tensor](self.objective.parameters))
        self.layout = self._pending.layout
        if remember_rows:
            self._spare = self.rows if self.rows is not self._pending else None
            self.rows = self._pending
        else:
            self._spare = self._pending
        self._journal.clear()
        self._pending = self._intake = None

    @property
    def revocable(self) -> bool:
        """Whether an update can be taken back after it was made."""
        return True

    def abandon(self, error: BaseException) -> None:
        """Let those who make this step together with us know that it has failed here."""

    def roll_back(self) -> int:
        """Take back what ``apply`` did; rows updated in place are restored by evaluating the update again.

        Where what was added is so much larger than the rows that rounding has eaten them up, there are none any more.

        Returns:
            How many per-sample multi-gradients that took.
        """
        if self._visit is not None:
            self._visit.back()
        if self._intake is not None and self._intake.close is not None:
            self._intake.close()
        pending, self._pending = self._pending, None
        journal, self._journal = self._journal, []
        torn, self._torn = self._torn, False
        if pending is None or pending is not self.rows:
            return 0  # staged, or rebuilt from nothing: what there was is untouched, or gone
        try:
            if torn or any(entry.intake.torn for entry in journal):
                raise RuntimeError("a row was being written")
            swollen = pending.sq_norms()
            for entry in reversed(journal):
                entry.guard.restore()
                with self._point(entry.at_previous):
                    evaluated = self.objective.evaluate(entry.piece.content, step=-1)
                    self.engine.rowwise(evaluated.graphs, self.objective.parameters, Undo(entry.intake))
            pending.scale(1.0 / self._kept)
            pending.reach = self._reach
            if pending.first_non_finite() is not None:
                raise OverflowError("the rows had overflown")
            if self.revocable and self._eaten_up(swollen, pending):
                self.rows = None
        except BaseException:
            self.clear()  # the estimator starts again rather than go on from a broken state
            raise
        return sum(entry.piece.size for entry in journal)

    def _eaten_up(self, swollen: Tensor, rows: Rows) -> bool:
        """Tell whether rounding has left too little of rows that had so large squares for a while."""
        kinds = [self.storage.dtype_for(parameter) for parameter in self.objective.parameters]
        most = max(LOSS / max(torch.finfo(kind).eps for kind in kinds), 4.0)
        return bool((swollen > (most * self._kept) ** 2 * rows.sq_norms()).any())

    def stages(self, objectives: int) -> bool:
        """Tell whether updates of so many rows are built beside the old ones."""
        return objectives * self.objective.dimension <= STAGED_ENTRIES and self.storage.plain

    def adjusted(self, estimate: MemoryEstimate) -> MemoryEstimate:
        """Return the estimate of one process's memory as it is for this ledger."""
        return estimate

    def survey(self, batch: Any, step: int) -> tuple[int, list[int]]:
        """Evaluate a batch without a trace; return S and which objectives reach each parameter, as bit masks."""
        guard = Snapshot(self.objective.model, self.objective.parameters)
        try:
            piece, _ = next(iter(self.objective.pieces(batch)))
            graphs = self.objective.evaluate(piece, step).graphs
        finally:
            guard.restore()
        return len(graphs), self._masks(graphs)

    def clear(self) -> None:
        """Forget everything."""
        self.rows = self.previous = self._spare = self._pending = None
        self._journal = []

    def new_rows(self, objectives: int) -> Rows:
        """Return empty rows for the model."""
        rows = Rows(self.objective.parameters, objectives, self.objective.decisive, self.storage)
        rows.make_room(self.layout)
        return rows

    def _apply_anchor(self, update: Update, step: int, account: Account, probe: Probe | None) -> None:
        anchor = update.anchor
        assert anchor is not None
        sizes = [0, 0]  # of the pair under way
        for batch in anchor.batches(self.share, self._tally):
            pieces, (pair, half) = self._pieces(batch), anchor.place or (None, 0)
            looker = None if pair is None else probe
            if looker is not None and not half:
                looker.begin(halves=True)
            sizes[half] = sum(size for _, size in pieces)
            for content, size in pieces:
                piece = Piece(content, size, half=half, share_of_half=size / sizes[half])
                self._accumulate(piece, step, float(size), account, probe=looker)
                account.samples = account.gradients = account.seen
            if looker is not None and pair is not None and half:
                anchor.spread = anchor.spread.add(pair, sum(sizes) * looker.end(sizes))
        self._join_anchor(anchor, account)
        if self._pending is None or not account.seen:
            raise InvalidBatch(
                "the anchor gave no batches: it is empty, or an iterator that was spent; pass a DataLoader or a list"
            )
        account.samples = account.gradients = account.seen  # of all processes
        self._pending.scale(update.now / account.seen)

    def _apply_batch(
        self, update: Update, batch: Any, step: int, guard: Snapshot, account: Account, probe: Probe | None
    ) -> None:
        pieces = self._cut(batch, halves=probe is not None and probe.halves)
        total = sum(piece.size for piece in pieces)
        own = self._own(update, total)
        account.count(total, update)
        difference = update.keep == update.now == -update.before == 1.0
        if probe is not None:
            probe.two_points = bool(update.before)
            probe.in_rows = difference and self.rows is not None and self._staged(self.rows)
        if len(pieces) == 1 and self._apply_compiled(own, batch, total, step, account, probe):
            if probe is not None:
                probe.in_rows |= difference and self.splits  # it does not change them in place
        else:
            self._begin_in_place(own)
            self._accumulate_pieces(pieces, own, step, guard, account, probe)
        self._join_batch(update, account)
        account.count(account.seen, update)
        if probe is not None:
            self._join_probe(probe, total, account.seen)
            probe.end([sum(piece.size for piece in pieces if piece.half == half) for half in (0, 1)])
            if probe.in_rows and probe.weights is not None:
                assert self.rows is not None
                now, before = (rows.combine(probe.weights)[0] for rows in (self.pending, self.rows))
                probe.compare(now, before)

    def _cut(self, batch: Any, *, halves: bool) -> list[Piece]:
        """Return the batch in pieces of at most ``micro_batch`` samples, if asked from two halves of it."""
        parts = [batch]
        if halves:
            with suppress(InvalidBatch):  # what cannot be cut is evaluated whole
                found = list(split(batch, -(-leading_size(batch) // 2)))
                if sum(map(self.objective.size, found)) == self.objective.size(batch):  # no sample is in both
                    parts = found
        pieces = [self._pieces(part) for part in parts]
        sizes = [sum(size for _, size in part) for part in pieces]
        return [
            Piece(content, size, size / sum(sizes), half, size / sizes[half])
            for half, part in enumerate(pieces)
            for content, size in part
        ]

    def _pieces(self, batch: Any) -> list[tuple[Any, int]]:
        """Return what this process evaluates of a batch."""
        if batch is None:
            raise InvalidBatch("this estimator needs a batch at every step: call backward(batch), found None")
        return list(self.objective.pieces(batch))

    def _own(self, update: Update, total: int) -> Update:
        """Return the part of an update that this process makes with its ``total`` samples."""
        return update

    def _join_batch(self, update: Update, account: Account) -> None:
        """Make the rows and the account of a batch those of all processes."""

    def _join_anchor(self, anchor: Anchor, account: Account) -> None:
        """Make the sums over an anchor and the account those of all processes, and let the anchor learn from them."""
        if self._pending is not None:
            anchor.learn(self._tally(anchor.spread))

    def _tally(self, spread: Spread) -> Spread:
        """Return what all processes have seen of an anchor so far."""
        return spread

    def _accumulate_pieces(
        self,
        pieces: list[Piece],
        update: Update,
        step: int,
        guard: Snapshot,
        account: Account,
        probe: Probe | None,
    ) -> None:
        if probe is not None:
            probe.begin(halves=any(piece.half for piece in pieces))
        if update.before:
            earlier = Account()
            with self._point(at_previous=True):
                for piece in pieces:
                    weight = update.before * piece.share
                    self._accumulate(piece, step, weight, earlier, at_previous=True, probe=probe)
            guard.restore()  # the same random draw at x_t; buffers advance there only
            account.before = earlier.losses
        for piece in pieces:
            self._accumulate(piece, step, update.now * piece.share, account, probe=probe)
        self._merge(update)

    def _can_watch_compiled(self, probe: Probe) -> bool:
        """Tell whether a probe needs no single gradients: it reads D off the rows, or does without."""
        return not probe.halves and (probe.in_rows or self.splits)

    def _join_probe(self, probe: Probe, own: int, total: int) -> None:
        """Make what a probe has added up over ``own`` samples that of all processes, over ``total``."""

    def _merge(self, update: Update) -> None:
        if update.keep and self.pending is not self.rows:
            assert self.rows is not None
            self.pending.merge(self.rows, update.keep)

    def _apply_compiled(
        self, update: Update, batch: Any, size: int, step: int, account: Account, probe: Probe | None
    ) -> bool:
        """Make the whole update in one compiled call; False, and nothing done, where there is none for it.

        Also where something is not finite: single rows then tell what it is.
        """
        if self.engine.name != "compiled" or (probe is not None and not self._can_watch_compiled(probe)):
            return False
        like = self._spare if self.rows is None else self.rows
        if like is not None and (
            like.objectives * self.objective.dimension > COMPILED_ENTRIES or not self.storage.plain
        ):
            self.engine.give_up(
                f"it is for at most {COMPILED_ENTRIES} entries of U (S x P), kept as they are by default"
            )
            return False
        previous = self.previous if update.before else None
        compiled = self.compiler.find(batch, previous, like, bool(update.keep), step)
        if compiled is None:
            return False
        assert like is not None
        old = [block.matrix for block in like.blocks] if update.keep else None
        weights = torch.tensor([update.keep, update.now, update.before], dtype=torch.float64)
        losses, before, matrices = compiled.function(self.objective.parameters, previous, batch, weights, old)
        if not all(map(finite, (losses, *matrices))):
            return False
        pending, self._spare = self._spare, None
        if pending is None or pending.layout != like.layout:
            pending = self.new_rows(like.objectives)
            pending.make_room(like.layout)
        reach = [new | kept for new, kept in zip(compiled.reach, like.reach, strict=True)]
        pending.replace(reach if update.keep else compiled.reach, matrices)
        self._pending = pending
        account.add(losses, size)
        account.before = before
        return True

    def _accumulate(
        self,
        piece: Piece,
        step: int,
        weight: float,
        account: Account,
        *,
        at_previous: bool = False,
        probe: Probe | None = None,
    ) -> None:
        """Add ``weight`` times the rows of one piece."""
        in_place = self._pending is not None and self._pending is self.rows
        guard = Snapshot(self.objective.model, self.objective.parameters) if in_place else None
        evaluated = self.objective.evaluate(piece.content, step)
        target = self._target(evaluated.graphs)
        large = not self._staged(target)
        side = side_of(probe, piece, target.objectives, at_previous)
        intake = self._intake = Accumulator(target, weight, step, careful=large, side=side)
        if guard is not None:
            self._journal.append(Entry(piece, at_previous, intake, guard))
        self.engine.differentiate(evaluated.graphs, self.objective.parameters, intake, large=large)
        target.settle()
        account.add(evaluated.losses, piece.size)

    def _target(self, graphs: Sequence[Tensor]) -> Rows:
        """Return U_t, with room for what these losses reach if they are the first."""
        if self._pending is None:
            self._pending = self._blank(len(graphs))
        target = self._pending
        if len(graphs) != target.objectives:
            raise InvalidLosses(f"losses returned {target.objectives} losses before and {len(graphs)} now")
        if not target.blocks:
            target.make_room(self._masks(graphs))
        return target

    def _masks(self, graphs: Sequence[Tensor]) -> list[int]:
        masks = [0] * len(self.objective.parameters)
        for s, members in enumerate(reached(graphs, self.objective.parameters)):
            if not members:
                raise reaches_nothing(s)
            for i in members:
                masks[i] |= 1 << s
        return masks

    def _blank(self, objectives: int) -> Rows:
        blank = self._spare
        if blank is None and self.rows is not None and not self._kept and not self._staged(self.rows):
            blank, self.rows = self.rows, None  # large: the old rows are not needed by an update that forgets them
        self._spare = None
        if blank is None:
            return self.new_rows(objectives)
        blank.clear(lazily=not self._staged(blank))
        blank.make_room(self.layout)
        return blank

    def _begin_in_place(self, update: Update) -> None:
        if update.keep and self.rows is not None and not self._staged(self.rows):
            self._torn = True
            self._pending, self._reach, self._kept = self.rows, self.rows.reach, update.keep
            if update.keep != 1.0:
                self.rows.scale(update.keep)
            self._torn = False

    def _point(self, at_previous: bool) -> Any:
        if not at_previous:
            return nullcontext()
        assert self.previous is not None
        self._visit = swapped(self.objective.parameters, self.previous)
        return self._visit

    def _staged(self, rows: Rows) -> bool:
        return self.stages(rows.objectives)


def side_of(probe: Probe | None, piece: Piece, objectives: int, at_previous: bool) -> Side | None:
    """Return where a probe wants the gradients of a piece, if there is one."""
    if probe is None:
        return None
    shares = {"of_half": piece.share_of_half, "of_all": piece.share}
    return probe.side(objectives, now=not at_previous, half=piece.half, **shares)
