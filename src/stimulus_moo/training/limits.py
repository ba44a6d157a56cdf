"""Limits of a training run: steps, gradients, tolerance."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from stimulus_moo.options import positive_integer, real
from stimulus_moo.training.run import Run


@dataclass(frozen=True)
class Limits:
    """When a run ends and how often it is evaluated."""

    steps: int | None
    gradients: int | None
    tolerance: float | None
    evaluate_every: int | None

    @classmethod
    def check(cls, steps: Any, gradients: Any, tolerance: Any, evaluate_every: Any, period: int | str) -> Limits:
        """Return checked limits; without any, 1000 steps."""
        if steps is None and gradients is None and tolerance is None:
            steps = 1000
        if tolerance is not None:
            tolerance = real("tolerance", tolerance, low=0.0)
            if evaluate_every is None:
                evaluate_every = period if isinstance(period, int) else 100
        return cls(
            None if steps is None else positive_integer("steps", steps),
            None if gradients is None else positive_integer("gradients", gradients),
            tolerance,
            None if evaluate_every is None else positive_integer("evaluate_every", evaluate_every),
        )

    def done(self, run: Run) -> float:
        """Return the fraction of the run that is done; 0 where only a tolerance ends it."""
        steps = run.step / self.steps if self.steps else 0.0
        return min(max(steps, run.multigradient.gradients / self.gradients if self.gradients else 0.0), 1.0)

    def reached(self, run: Run) -> str | None:
        """Return which limit was reached, or None."""
        if self.tolerance is not None and run.stationarity() <= self.tolerance:
            return "tolerance"
        if self.steps is not None and run.step >= self.steps:
            return "steps"
        if self.gradients is not None and run.multigradient.gradients >= self.gradients:
            return "gradients"
        return None
