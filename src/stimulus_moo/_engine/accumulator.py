"""How gradients enter the rows: weighted, looked at first where that must be, and noted so that they can be undone."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from stimulus_moo._engine.finite import finite
from stimulus_moo._engine.objective import reaches_nothing
from stimulus_moo._engine.observation import Side
from stimulus_moo._engine.rows import Rows
from stimulus_moo.errors import NonFiniteError


class Accumulator:
    """Adds ``weight`` times what an engine differentiates to the rows.

    Args:
        rows: U_t as it is being built.
        weight: what every gradient is multiplied by.
        step: t, for messages.
        careful: refuse a gradient that is not finite before it is added, because it could not be taken out again.
        side: who else takes the gradients.
    """

    def __init__(
        self,
        rows: Rows,
        weight: float,
        step: int,
        *,
        careful: bool = False,
        side: Side | None = None,
    ) -> None:
        self.rows = rows
        self.weight = weight
        self.step = step
        self.careful = careful
        self.side = side
        self.finished = 0  # objectives whose rows have been added whole
        self.partial: set[int] = set()  # parameters of the next row that have been added
        self.torn = False  # is a change under way?
        self.close: Callable[[], None] | None = None  # what the engine owes if a signal kept it from tidying up

    def take_row(self, objective: int, gradients: Sequence[Tensor | None]) -> None:
        """Add one row."""
        self._look(objective, [gradient for gradient in gradients if gradient is not None])
        if all(gradient is None for gradient in gradients):
            raise reaches_nothing(objective)
        if self.side is not None:
            self.side.add_row(objective, gradients)
        self.torn = True
        self.rows.add(objective, gradients, self.weight)
        self.finished = objective + 1
        self.torn = False  # after it is noted: what is not noted is not undone

    def take_one(self, objective: int, i: int, gradient: Tensor) -> None:
        """Add one parameter's part of a row."""
        self._look(objective, [gradient])
        if self.side is not None:
            self.side.add_one(objective, i, gradient)
        self.torn = True
        self.rows.add_one(objective, i, gradient, self.weight)
        self.partial.add(i)
        self.torn = False

    def end_row(self, objective: int) -> None:
        """Close a row that came in parts."""
        if not self.partial:
            raise reaches_nothing(objective)
        self.torn = True
        self.finished, self.partial = objective + 1, set()
        self.torn = False

    def take_all(self, gradients: Sequence[Tensor | None]) -> None:
        """Add all rows, which are finite."""
        if self.side is not None:
            self.side.add_all(gradients)
        self.torn = True
        self.rows.add_stacked(gradients, self.weight)
        self.finished = self.rows.objectives
        self.torn = False

    def _look(self, objective: int, gradients: Sequence[Tensor]) -> None:
        if self.careful and not all(map(finite, gradients)):
            raise non_finite_gradient(objective, self.step)


class Undo(Accumulator):
    """Subtracts what another intake has added, when it is given the same gradients again."""

    def __init__(self, done: Accumulator) -> None:
        super().__init__(done.rows, -done.weight, done.step)
        self.done = done

    def take_row(self, objective: int, gradients: Sequence[Tensor | None]) -> None:
        """Subtract the part of a row that was added."""
        for i, gradient in enumerate(gradients):
            if gradient is not None and (
                objective < self.done.finished or (objective == self.done.finished and i in self.done.partial)
            ):
                self.rows.add_one(objective, i, gradient, self.weight)


def non_finite_gradient(objective: int, step: int) -> NonFiniteError:
    """Return the error for a gradient with NaN or infinity."""
    return NonFiniteError(
        f"the gradient of objective {objective} holds NaN or infinity at step {step} although its loss is finite; "
        "nothing was changed: look for a square root, a norm or a logarithm at zero, or for low-precision overflow",
        objective=objective,
        step=step,
    )
