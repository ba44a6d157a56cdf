"""When a run of ``fit`` ends: after steps, gradients, passes or seconds, or at a tolerance; the first one counts."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from stimulus_moo.options import positive_integer, real

if TYPE_CHECKING:
    from stimulus_moo.training.run import Run

#: What a limit can be set on, in the order in which limits that are reached at the same step are reported.
COSTS = ("steps", "gradients", "passes", "seconds")

ANCHOR_SHARE = 0.1  # largest number of samples of an anchor, in units of all evaluations of the run so far


@dataclass(frozen=True)
class Limits:
    """When a run ends and how often it is evaluated, with arguments as for ``fit``; None is no limit."""

    steps: int | None = None
    gradients: int | None = None
    passes: int | None = None
    seconds: float | None = None
    tolerance: float | None = None
    evaluate_every: int | None = None

    @classmethod
    def check(
        cls, *, period: int | str | None, evaluate_every: Any, tolerance: Any, seconds: Any, **counts: Any
    ) -> Self:
        """Return checked limits; 1000 steps if there are none. ``counts`` are ``steps``, ``gradients``, ``passes``."""
        if all(limit is None for limit in (tolerance, seconds, *counts.values())):
            counts["steps"] = 1000
        if seconds is not None:
            seconds = real("seconds", seconds, low=0.0, open_low=True)
        if tolerance is not None:
            tolerance = real("tolerance", tolerance, low=0.0)
            if evaluate_every is None:
                evaluate_every = period if isinstance(period, int) else 100
        counts["evaluate_every"] = evaluate_every
        checked = {name: None if value is None else positive_integer(name, value) for name, value in counts.items()}
        return cls(tolerance=tolerance, seconds=seconds, **checked)

    def expected_steps(self, batch_size: int) -> int:
        """Return how many steps a run has at least under kept weights; 0 where only a time or tolerance ends it."""
        passes = [limit // (2 * batch_size) for limit in (self.gradients, self.passes) if limit is not None]
        return min([*passes, *([] if self.steps is None else [self.steps])], default=0)

    def done(self, run: "Run") -> float:
        """Return the fraction of the run that is done, by the limit that is closest; 0 with a tolerance alone."""
        return min(max((spent / limit for spent, limit in self._costs(run).values()), default=0.0), 1.0)

    def affords_anchor(self, run: "Run") -> bool:
        """Return whether the run can pay for a pass over all data that solves for weights, and a period after it.

        A period of differences, at two points each, costs as much as the pass. The budget must have room for both, and
        the pass must be small beside what the run has spent, so that one in vain costs little.
        """
        samples = len(run.settings.source) if run.settings.source.finite else 0
        if samples > ANCHOR_SHARE * run.multigradient.gradients:
            return False
        needed = {"gradients": 2 * samples, "passes": (run.history.objectives + 1) * samples}
        return all(limit - spent >= needed.get(name, 0) for name, (spent, limit) in self._costs(run).items())

    def reached(self, run: "Run") -> str | None:
        """Return the name of the limit that was reached, or None."""
        if self.tolerance is not None and run.measured is not None and run.measured.stationarity <= self.tolerance:
            return "tolerance"
        return next((name for name, (spent, limit) in self._costs(run).items() if spent >= limit), None)

    def _costs(self, run: "Run") -> dict[str, tuple[float, float]]:
        """Return what a run has spent and may spend, for every cost that is limited."""
        spent = (run.step, run.multigradient.gradients, run.multigradient.passes, run.seconds)
        limits = (getattr(self, name) for name in COSTS)
        return {name: (s, limit) for name, s, limit in zip(COSTS, spent, limits, strict=True) if limit is not None}
