"""The first choice of a method: how each objective's gradient is estimated, as one linear update of the rows U."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from stimulus_moo._engine.observation import Observation
from stimulus_moo.anchors import Anchor
from stimulus_moo.errors import InvalidOption
from stimulus_moo.state import Stateful


@dataclass(frozen=True)
class Update:
    """What one iteration does to the rows, for the batch B of the step or of an anchor.

    .. code-block:: text

        U_t = keep U_{t-1} + now grad F_B(x_t) + before grad F_B(x_{t-1})

    Every estimator is of this form, so the engine knows none of them by name. An anchor is evaluated at x_t only, and
    at t = 0 there is nothing to keep or to compare with.

    Attributes:
        keep, now, before: the coefficients.
        anchor: evaluate its batches in place of the step's batch.
        look_back: evaluate the batch at x_{t-1} too, also where ``before`` is 0; implied by ``before``.
        halves: evaluate the batch in two halves, whose difference measures the noise.
        recursive: the update adds the batch's difference to the rows (keep = now = 1, before = -1), so that errors
            add up until the next anchor.
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
        if self.recursive and (self.keep, self.now, self.before) != (1.0, 1.0, -1.0):
            raise InvalidOption(
                "a recursive update has keep = 1, now = 1 and before = -1, found "
                f"keep={self.keep!r}, now={self.now!r}, before={self.before!r}"
            )
        if self.before:
            object.__setattr__(self, "look_back", True)


class Estimator(Stateful, ABC):
    """A rule that gives the update of iteration t."""

    #: the rule compares the batch's gradients at x_t and x_{t-1}
    two_point = False
    #: the rule relies on the loss being a finite sum, which BatchNorm in training mode breaks
    finite_sum = False
    #: the rows are needed at the next iteration
    remembers = False
    #: the rule learns from what a batch shows at two points
    observes = False
    anchor: Anchor | None = None

    def prepare(self, moved: float) -> None:
        """Be told ||x_t - x_{t-1}|| before ``update``; only rules that observe are."""

    @abstractmethod
    def update(self, t: int) -> Update:
        """Return what iteration t does to the rows.

        Also called with t = 0 after stored rows are lost; a rule must be able to restart.
        """

    def learn(self, observation: Observation) -> None:
        """Learn from a batch; only rules that observe are told."""

    def record(self, sq_norm: float, *, anchored: bool) -> None:
        """Learn from a finished step: ||d_t||^2, and whether it was an anchor."""
        if self.anchor is not None and self.anchor.adapts:
            self.anchor.record(sq_norm, anchored=anchored)
