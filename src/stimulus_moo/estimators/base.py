"""Estimators, the first choice of a method: each iteration is one linear update of the rows U."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar

from stimulus_moo._engine.observation import Observation
from stimulus_moo.anchors import Anchor
from stimulus_moo.errors import InvalidOption
from stimulus_moo.state import Stateful


@dataclass(frozen=True)
class Update:
    """What one iteration does to the rows, for the batch B of the step or of an anchor.

    .. code-block:: text

        U_t = keep U_{t-1} + now grad F_B(x_t) + before grad F_B(x_{t-1})

    The engine knows estimators only by this form. At t = 0 there are no rows to keep and no previous point.

    Attributes:
        keep, now, before: the coefficients.
        anchor: evaluate its batches instead of the step's batch, at x_t only.
        look_back: evaluate the batch at x_{t-1} too, even if ``before`` is 0; implied by a nonzero ``before``.
        halves: evaluate the batch in two halves, whose difference measures the noise.
        recursive: keep = now = 1 and before = -1, so errors accumulate until the next anchor.
    """

    keep: float
    now: float
    before: float = 0.0
    anchor: Anchor | None = None
    look_back: bool = False
    halves: bool = False
    recursive: bool = False

    def __post_init__(self) -> None:
        if self.anchor is not None and (self.before or self.look_back):
            raise InvalidOption(f"before must be 0 in an update with an anchor, found {self.before!r}")
        found = (self.keep, self.now, self.before)
        if self.recursive and found != (1.0, 1.0, -1.0):
            raise InvalidOption(f"(keep, now, before) must be (1, 1, -1) in a recursive update, found {found}")
        if self.before:
            object.__setattr__(self, "look_back", True)


#: the recursive step: add the batch's difference between x_t and x_{t-1} to the rows
DIFFERENCE = Update(keep=1.0, now=1.0, before=-1.0, recursive=True)


class Estimator(Stateful, ABC):
    """A rule that returns the update of iteration t."""

    two_point = False  #: the rule compares the batch's gradients at x_t and x_{t-1}
    finite_sum = False  #: the rule relies on the loss being a finite sum, which BatchNorm in training mode breaks
    recursive = False  #: differences have replaced the batches' own gradients, which reduces the noise of d
    remembers = False  #: the rows are needed at the next iteration
    observes = False  #: ``learn`` is called
    judges = False  #: it gives up differences by itself where steps are too long for them
    prepares = False  #: ``prepare`` is called, and the halves of a batch may be compared
    affordable = True  #: the run has the budget for another anchor; ``fit`` sets it, for rules that have the choice
    anchor: Anchor | None = None

    def prepare(self, moved: float) -> None:
        """Receive ||x_t - x_{t-1}|| before ``update``."""

    @abstractmethod
    def update(self, t: int) -> Update:
        """Return what iteration t does to the rows.

        Also called with t = 0 after stored rows are lost; a rule must be able to restart.
        """

    def learn(self, observation: Observation) -> None:
        """Receive what the step observed on its batch."""

    def record(self, sq_norm: float, *, anchored: bool) -> None:
        """Receive ||d_t||^2 of a finished step, and whether it was an anchor."""
        if self.anchor is not None and self.anchor.adapts:
            self.anchor.record(sq_norm, anchored=anchored)


def check_estimator(estimator: Any) -> None:
    """Raise InvalidOption for what is not an estimator."""
    if not isinstance(estimator, Estimator):
        raise InvalidOption(
            f"estimator must be an Estimator such as Recursive(anchor, period) or MiniBatch(), found {estimator!r}"
        )


class ErrorModel(Stateful):
    """Running means from which a recursive rule predicts its own error.

    The variance of a batch's difference D = grad f_A(x_t) - grad f_A(x_{t-1}) is proportional to ||x_t - x_{t-1}||^2.
    The factor is measured on the two halves of a batch, for the lambda-weighted sum of the rows that the step follows.
    """

    state_names: ClassVar[tuple[str, ...]] = ("error", "drift", "signal", "moved")
    optional_names = MappingProxyType({"drift": float, "signal": float})
    amount_names: ClassVar[tuple[str, ...]] = ("error", "drift", "signal", "moved")
    memory, rate = 0.9, 0.1  # weights of the old and the new value in a running mean
    error = 0.0  # variance of the estimate's error
    drift: float | None = None  # variance of D over ||x_t - x_{t-1}||^2
    signal: float | None = None  # running mean of ||d||^2
    moved = 0.0  # ||x_t - x_{t-1}||

    def prepare(self, moved: float) -> None:
        """Receive ||x_t - x_{t-1}|| before the step."""
        self.moved = moved

    def learn(self, observation: Observation) -> None:
        """Update the variance of D."""
        if observation.change_variance is not None and observation.moved:
            self.drift = self._mean(self.drift, observation.change_variance / observation.moved**2)

    def record(self, sq_norm: float, *, anchored: bool) -> None:
        """Update the mean of ||d||^2."""
        self.signal = self._mean(self.signal, sq_norm)

    def _mean(self, old: float | None, new: float) -> float:
        return new if old is None else self.memory * old + self.rate * new
