"""When the weights are solved for again; in between they are kept, and a step differentiates one loss."""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from types import MappingProxyType
from typing import Any

from stimulus_moo._engine.running_means import running_means
from stimulus_moo.errors import StateMismatch
from stimulus_moo.state import Stateful, check_numbers


class Reweigh(Stateful, ABC):
    """A rule for the steps at which all S rows are computed and the weights solved for."""

    learns = False  #: ``learn`` is called

    @abstractmethod
    def due(self, t: int, *, anchored: bool) -> bool:
        """Return whether iteration t solves for the weights."""

    def learn(
        self, losses: Sequence[float], before: Sequence[float] | None, passes: int, *, solved: bool, anchored: bool
    ) -> None:
        """Receive what a finished step has cost and shown: its losses, and the same batch's at x_{t-1}."""


class Every(Reweigh):
    """Every R-th iteration."""

    def __init__(self, steps: int) -> None:
        self.steps = steps

    def due(self, t: int, *, anchored: bool) -> bool:
        """Return whether t is a multiple of R."""
        return t % self.steps == 0


class AtAnchors(Reweigh):
    """Every anchor."""

    def due(self, t: int, *, anchored: bool) -> bool:
        """Return whether it is an anchor."""
        return anchored


class WhenRising(Reweigh):
    r"""When an objective goes on rising under the kept weights, and now and then in any case.

    .. code-block:: text

        y_t^s = f_A^s(x_t) - f_A^s(x_{t-1})                 if the step evaluates two points, else
        y_t^s = f_A^s(x_t) - (running mean of f^s at the solve)
        due if  passes since the solve >= those of a solve, and some mean of y^s since it exceeds 3 standard errors,
        or if   passes since the solve >= 9 times those of a solve

    A solve costs S passes per sample and a kept step one, so solves use between a tenth and half of all passes. At an
    anchor, a solve costs S times as much as the last anchor under kept weights. The first anchor of a rule that has
    solved on batches before keeps their weights, since its price is not known. A rule that adds differences is not
    asked between its anchors, where its rows are not complete.

    The running mean has a memory of 0.9. A loss without a count (``counts=``) counts as unchanged.
    """

    state_names = ("spent", "cost", "anchor_cost", "level", "reference", "count", "mean", "squares")
    optional_names = MappingProxyType(
        {"cost": int, "anchor_cost": int, **dict.fromkeys(("level", "reference", "mean", "squares"), list)}
    )
    count_names = ("spent", "count")
    learns = True
    FEW, ERRORS, SELDOM, MEMORY = 5, 3.0, 9, 0.9

    def __init__(self) -> None:
        self.spent = 0  # passes since the last solve
        self.cost: int | None = None  # passes of the last solve on a batch
        self.anchor_cost: int | None = None  # passes that a solve at the last anchor has taken, or would have
        self.level: list[float] | None = None  # running mean of the losses
        self.reference: list[float] | None = None  # its value at the last solve
        self.count = 0  # of y since the solve
        self.mean: list[float] | None = None  # of y
        self.squares: list[float] | None = None  # sum of squared deviations of y from its mean

    def check_state(self, state: Any, path: str = "") -> None:
        """Raise StateMismatch if ``state`` does not fit, including the numbers in its lists."""
        super().check_state(state, path)
        for name in ("cost", "anchor_cost"):
            if state[name] is not None and (type(state[name]) is not int or state[name] < 0):
                raise StateMismatch(f"{path or self.kind}.{name} must be a count or None, found {state[name]!r}")
        for name in ("level", "reference", "mean", "squares"):
            if state[name] is not None:
                check_numbers(state[name], f"{path or self.kind}.{name}", low=0.0 if name == "squares" else -math.inf)

    def due(self, t: int, *, anchored: bool) -> bool:
        """Return whether the weights are due."""
        cost = self.anchor_cost if anchored else self.cost
        if cost is None:
            return not anchored or self.cost is None
        return self.spent >= self.SELDOM * cost or (self.spent >= cost and self.rising())

    def rising(self) -> bool:
        """Return whether some objective has risen significantly since the solve."""
        n = self.count
        if n < self.FEW or self.mean is None or self.squares is None:
            return False
        pairs = zip(self.mean, self.squares, strict=True)
        return any(mean > self.ERRORS * math.sqrt(squares / (n - 1) / n) for mean, squares in pairs)

    def learn(
        self, losses: Sequence[float], before: Sequence[float] | None, passes: int, *, solved: bool, anchored: bool
    ) -> None:
        """Update the means; a solve begins new ones."""
        self.level = running_means(self.level, losses, self.MEMORY)
        if anchored:
            self.anchor_cost = passes if solved else passes * len(losses)
        elif solved:
            self.cost = passes
        if solved:
            self.spent, self.reference = 0, self.level
            self.count, self.mean, self.squares = 0, None, None
            return
        self.spent += passes
        was = self.reference if before is None else before
        if was is not None and not anchored:
            changes = [new - old for new, old in zip(losses, was, strict=True)]
            self._add([change if math.isfinite(change) else 0.0 for change in changes])

    def _add(self, changes: Sequence[float]) -> None:
        self.count += 1
        mean = [0.0] * len(changes) if self.mean is None else self.mean
        squares = [0.0] * len(changes) if self.squares is None else self.squares
        new = [old + (y - old) / self.count for old, y in zip(mean, changes, strict=True)]
        terms = zip(squares, mean, new, changes, strict=True)
        self.squares = [total + (y - old) * (y - now) for total, old, now, y in terms]
        self.mean = new
