"""The rows U and the last point x_{t-1}: changed by one estimator's update at a time, or not at all."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from stimulus_moo.errors import InvalidBatch, InvalidLosses, InvalidOption, NonFiniteError
from stimulus_moo.estimators import Update
from stimulus_moo.guard import Guard, swapped
from stimulus_moo.objective import Objective
from stimulus_moo.rows import Rows

#: Up to this many entries of U (S x P) an update is built beside the old rows, and taking it back is exact. Above, rows
#: are updated in place, so that no second S x P matrix exists; a failed update is then taken back by evaluating it
#: again with the opposite sign, which is exact to rounding.
STAGED_ENTRIES = 1 << 22


@dataclass
class Account:
    """What one update cost and saw."""

    samples: int = 0
    gradients: int = 0
    losses: Tensor | None = None  # means at x_t over all samples evaluated there
    seen: int = field(default=0, repr=False)

    def add(self, losses: Tensor, size: int) -> None:
        """Take the losses of a piece into the mean."""
        self.seen += size
        self.losses = losses if self.losses is None else self.losses + (losses - self.losses) * (size / self.seen)


class Ledger:
    """Keeps U and x_{t-1}, and applies updates to them as transactions: ``apply``, then ``commit`` or ``roll_back``."""

    def __init__(self, objective: Objective, decisive: list[bool]) -> None:
        self.objective = objective
        self.decisive = decisive
        self.rows: Rows | None = None  # U_{t-1}, where an estimator needs it again
        self.previous: list[Tensor] | None = None  # x_{t-1}
        self.layout = [0] * len(objective.parameters)  # every reach seen so far: how the rows are cut into blocks
        self._spare: Rows | None = None  # memory for the next update
        self._pending: Rows | None = None  # U_t before commit
        self._journal: list[tuple[Any, bool, float, Guard, int]] = []  # what was added in place
        self._kept = 1.0  # what the rows are multiplied by
        self._reach: list[int] = []  # what the rows reached before they were updated in place
        self._torn = False  # is a change in place under way?

    def apply(self, update: Update, batch: Any, step: int, guard: Guard) -> Account:
        """Build U_t from U_{t-1}; nothing is final before ``commit``."""
        if (update.keep and self.rows is None) or (update.before and self.previous is None):
            raise InvalidOption(
                f"the estimator's update at step {step} needs rows or a point that were never stored, found "
                f"keep={update.keep!r}, before={update.before!r}; start from keep=0 and before=0, and let the "
                "estimator set remembers and two_point"
            )
        account = Account()
        self._kept = update.keep
        if update.anchor is not None:
            self._apply_anchor(update, step, account)
        else:
            self._apply_batch(update, batch, step, guard, account)
        assert self._pending is not None
        if update.keep and self._pending is not self.rows:
            assert self.rows is not None
            self._pending.merge(self.rows, update.keep)
        bad = self._pending.first_non_finite() if self._staged(self._pending) else None
        if bad is not None:
            raise _non_finite(bad, step)
        return account

    @property
    def pending(self) -> Rows:
        """U_t of the update under way."""
        assert self._pending is not None
        return self._pending

    def commit(self, *, remember_rows: bool, remember_point: bool) -> None:
        """Make the update final: U_t takes the place of U_{t-1}, x_t that of x_{t-1}."""
        self.layout = self.pending.layout
        if remember_rows:
            self._spare = self.rows if self.rows is not self._pending else None
            self.rows = self._pending
        else:
            self._spare = self._pending
        self._pending = None
        self._journal.clear()
        if remember_point:
            if self.previous is None:
                self.previous = [parameter.detach().clone() for parameter in self.objective.parameters]
            else:
                for kept, parameter in zip(self.previous, self.objective.parameters, strict=True):
                    kept.copy_(parameter.detach())

    def roll_back(self) -> None:
        """Take back what ``apply`` did; rows updated in place are restored by evaluating the update again."""
        pending, self._pending = self._pending, None
        journal, self._journal = self._journal, []
        torn, self._torn = self._torn, False
        if pending is None or pending is not self.rows:
            return  # staged, or rebuilt from nothing: what there was is untouched, or not needed by any later step
        try:
            if torn:
                raise RuntimeError("a row was being written")
            for piece, at_previous, weight, guard, rows in reversed(journal):
                guard.restore()
                with self._point(at_previous):
                    for row in self._limited(piece, rows):
                        pending.add(*row, -weight)
            pending.scale(1.0 / self._kept)
            pending.reach = self._reach
            if pending.first_non_finite() is not None:
                raise OverflowError("the rows had overflown")
        except BaseException:
            self.clear()  # the estimator starts again rather than go on from a broken state
            raise

    def clear(self) -> None:
        """Forget everything."""
        self.rows = self.previous = self._spare = self._pending = None
        self._journal = []

    def new_rows(self, objectives: int) -> Rows:
        """Return empty rows for the model."""
        rows = Rows(self.objective.parameters, objectives, self.decisive)
        rows.make_room(self.layout)
        return rows

    def _apply_anchor(self, update: Update, step: int, account: Account) -> None:
        anchor = update.anchor
        assert anchor is not None
        for batch in anchor.batches():
            for piece, size in self.objective.pieces(batch):
                squares = self._accumulate(piece, step, float(size), account, size, square=anchor.estimates_variance)
                if anchor.estimates_variance:
                    anchor.observe(size, squares, self.pending.sq_norms)
        if self._pending is None:
            raise InvalidBatch(
                "the anchor gave no batches: it is empty, or an iterator that was spent; pass a DataLoader or a list"
            )
        account.samples = account.gradients = account.seen
        self._pending.scale(update.now / account.seen)

    def _apply_batch(self, update: Update, batch: Any, step: int, guard: Guard, account: Account) -> None:
        if batch is None:
            raise InvalidBatch("this estimator needs a batch at every step: call backward(batch), found None")
        pieces = list(self.objective.pieces(batch))
        total = sum(size for _, size in pieces)
        self._begin_in_place(update)
        if update.before:
            with self._point(at_previous=True):
                for piece, size in pieces:
                    self._accumulate(piece, step, update.before * size / total, None, size, at_previous=True)
            guard.restore()  # the same random draw at x_t; buffers advance there only
        for piece, size in pieces:
            self._accumulate(piece, step, update.now * size / total, account, size)
        account.samples = total
        account.gradients = 2 * total if update.before else total

    def _accumulate(
        self,
        piece: Any,
        step: int,
        weight: float,
        account: Account | None,
        size: int,
        *,
        at_previous: bool = False,
        square: bool = False,
    ) -> Tensor:
        """Add ``weight`` times the rows of one piece; return ||g^s||^2 for every s if ``square``."""
        in_place = self._pending is not None and self._pending is self.rows
        guard = Guard(self.objective.model, self.objective.parameters) if in_place else None
        evaluated = self.objective.evaluate(piece, step)
        if self._pending is None:
            self._pending = self._blank(len(evaluated.losses))
        target = self._pending
        if len(evaluated.losses) != target.objectives:
            raise InvalidLosses(f"losses returned {target.objectives} losses before and {len(evaluated.losses)} now")
        target.cover(evaluated.reach)
        squares = torch.zeros(len(evaluated.losses), dtype=torch.float64)
        staged = self._staged(target)
        for objective, members, gradients in evaluated.rows:
            if not staged and not _finite(gradients):
                raise _non_finite(objective, step)
            self._torn = True
            target.add(objective, members, gradients, weight)
            if guard is not None:
                self._note((piece, at_previous, weight, guard), objective + 1)
            self._torn = False
            if square:
                squares[objective] = _sq_norm(gradients)
        if account is not None:
            account.add(evaluated.losses, size)
        return squares

    def _blank(self, objectives: int) -> Rows:
        blank = self._spare
        if blank is None and self.rows is not None and not self._kept and not self._staged(self.rows):
            blank, self.rows = self.rows, None  # large: the old rows are not needed by an update that forgets them
        self._spare = None
        if blank is None:
            return self.new_rows(objectives)
        blank.clear()
        blank.make_room(self.layout)
        return blank

    def _begin_in_place(self, update: Update) -> None:
        if update.keep and self.rows is not None and not self._staged(self.rows):
            self._torn = True
            self._pending, self._reach = self.rows, self.rows.reach
            if update.keep != 1.0:
                self.rows.scale(update.keep)
            self._torn = False

    def _note(self, entry: tuple[Any, bool, float, Guard], rows: int) -> None:
        if self._journal and self._journal[-1][3] is entry[3]:
            self._journal.pop()
        self._journal.append((*entry, rows))

    def _limited(self, piece: Any, rows: int) -> Iterator[tuple[int, list[int], tuple[Tensor | None, ...]]]:
        for row in self.objective.evaluate(piece, step=-1).rows:
            if row[0] >= rows:
                return
            yield row

    def _point(self, at_previous: bool) -> Any:
        if not at_previous:
            return nullcontext()
        assert self.previous is not None
        return swapped(self.objective.parameters, self.previous)

    def _staged(self, rows: Rows) -> bool:
        return rows.entries <= STAGED_ENTRIES


def _finite(gradients: tuple[Tensor | None, ...]) -> bool:
    return all(bool(torch.isfinite(g.sum()) or torch.isfinite(g).all()) for g in gradients if g is not None)


def _sq_norm(gradients: tuple[Tensor | None, ...]) -> float:
    norms = [torch.linalg.vector_norm(g, dtype=torch.float64) for g in gradients if g is not None]
    return float(torch.stack(norms).square().sum()) if norms else 0.0


def _non_finite(objective: int, step: int) -> NonFiniteError:
    return NonFiniteError(
        f"the gradient of objective {objective} holds NaN or infinity at step {step} although its loss is finite; "
        "nothing was changed: look for a square root, a norm or a logarithm at zero, or for low-precision overflow",
        objective=objective,
        step=step,
    )
