"""Adds the gradients of a large model to the rows as an engine computes them."""

from collections.abc import Callable, Sequence

from torch import Tensor

from stimulus_moo._engine.nonfinite import non_finite_gradient
from stimulus_moo._engine.observation import WeightedSum
from stimulus_moo._engine.placement import reaches_nothing
from stimulus_moo._engine.rows import Rows


class Accumulator:
    """Adds ``weight`` times every gradient to the rows; a weight of 0 only looks at the gradients.

    It takes one row, or one parameter's gradient, at a time, so that the S rows are never held twice. NaN in a gradient
    is found in the rows, whose Gramian has it too; where ``side`` also receives the gradients, or they are only looked
    at, each is checked first.
    """

    def __init__(self, rows: Rows, weight: float, step: int, side: WeightedSum | None = None) -> None:
        self.rows, self.weight, self.step, self.side = rows, weight, step, side
        self.finished = 0  # objectives whose rows have been added
        self.close: Callable[[], None] | None = None  # cleanup callback, run if the engine was interrupted
        self._partial = False  # has a part of the next row been added?

    def take_stacked(self, gradients: Sequence[Tensor | None], present: int = -1) -> None:
        """Add all rows, which are finite: one tensor [S, *shape] per parameter, or None; others than these are 0."""
        if self.side is not None:
            self.side.add_stacked(gradients)
        self.rows.add_stacked(gradients if self.weight else [None] * len(gradients), self.weight, present)
        self.finished = self.rows.objectives

    def take_row(self, objective: int, gradients: Sequence[Tensor | None]) -> None:
        self._check(objective, [gradient for gradient in gradients if gradient is not None])
        if self.side is not None:
            self.side.add_row(objective, gradients)
        self.rows.add(objective, gradients if self.weight else [None] * len(gradients), self.weight)
        self.finished = objective + 1

    def skip_row(self, objective: int) -> None:
        """Add nothing to a row, since its loss is not part of the piece; several processes take part in it."""
        self.rows.add(objective, [None] * len(self.rows.parameters), self.weight)
        self.finished = objective + 1

    def take_one(self, objective: int, i: int, gradient: Tensor) -> None:
        self._check(objective, [gradient])
        if self.side is not None:
            self.side.add_one(objective, i, gradient)
        if self.weight:
            self.rows.add_one(objective, i, gradient, self.weight)
        self._partial = True

    def end_row(self, objective: int) -> None:
        """Finish a row that was added by ``take_one``."""
        if not self._partial:
            raise reaches_nothing(objective)
        self.finished, self._partial = objective + 1, False

    def _check(self, objective: int, gradients: Sequence[Tensor]) -> None:
        if not gradients:
            raise reaches_nothing(objective)
        if (self.side is not None or not self.weight) and not self.rows.finite(gradients):
            raise non_finite_gradient(objective, self.step)
