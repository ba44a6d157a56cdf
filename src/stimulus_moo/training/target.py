"""The point of the front that ``fit`` trains to: a ray or bounds, as a weighting, and what was missed of the bounds."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from stimulus_moo._engine.counts import Counts
from stimulus_moo._engine.objective import Losses
from stimulus_moo.errors import InvalidOption
from stimulus_moo.options import natural_number, real, share
from stimulus_moo.training.history import Result
from stimulus_moo.weightings import Bounded, LossAware, Ray

logger = logging.getLogger("stimulus_moo")

CLOSE = 1e-3  # a bound that is exceeded by at most this share of it counts as met


@dataclass(frozen=True)
class Target:
    """A preference or bounds, checked; bounds may be shares above an objective's own best value."""

    preference: Sequence[float] | None = None
    bounds: Mapping[int, float] | None = None
    shares: Mapping[int, float] | None = None  # 0.05 for "5%"

    @classmethod
    def check(cls, preference: Any, bounds: Any, weighting: Any) -> "Target | None":
        """Return the target of the arguments of ``fit``; None if there is none."""
        names = ("preference", "bounds", "weighting")
        found = [name for name, value in zip(names, (preference, bounds, weighting), strict=True) if value is not None]
        if len(found) > 1:
            raise InvalidOption(f"at most one of preference, bounds and weighting can be given, found {found}")
        if preference is not None:
            return cls(preference=Ray(preference).preference.tolist())
        if bounds is None:
            return None
        if not isinstance(bounds, Mapping) or not bounds:
            raise InvalidOption(f"bounds must map at least one objective to its largest value, found {bounds!r}")
        shares = {natural_number("an objective of bounds", s): share(f"bounds[{s}]", b) for s, b in bounds.items()}
        numbers = {s: real(f"bounds[{s}]", b) for s, b in bounds.items() if not isinstance(b, str)}
        return cls(bounds=numbers, shares={s: one for s, one in shares.items() if one is not None})

    def resolved(self, least: Callable[[int], float]) -> "Target":
        """Return the target with all bounds as numbers; ``least(s)`` is the best value of objective s."""
        bounds = dict(self.bounds or {})
        for s, above in (self.shares or {}).items():
            best = least(s)
            bounds[s] = best + above * abs(best)
            logger.info("objective %d alone reaches %g; its bound is %g", s, best, bounds[s])
        return replace(self, bounds=dict(sorted(bounds.items())) or None, shares=None)

    def weighting(self) -> LossAware:
        """Return the weighting that leads to the target."""
        if self.preference is not None:
            return Ray(self.preference)
        return Bounded(self.bounds or {})

    def judge(self, result: Result) -> Result:
        """Add the bounds, and by how much those were missed that were."""
        bounds, losses = dict(self.bounds or {}), result.losses
        missed = {s: losses[s] - b for s, b in bounds.items() if losses and losses[s] - b > CLOSE * abs(b)}
        for s, amount in missed.items():
            logger.warning("bound missed: objective %d is %g, by %g above %g", s, losses[s], amount, bounds[s])
        return replace(result, bounds=bounds, missed=missed)


def alone(losses: Losses, counts: Counts | None, s: int) -> tuple[Losses, Counts | None]:
    """Return the losses and counts of one objective."""

    def one_loss(model: Any, batch: Any) -> Any:
        returned = losses(model, batch)
        found = list(returned.values()) if isinstance(returned, Mapping) else returned
        if s >= len(found):
            raise InvalidOption(f"bounds must name objectives below {len(found)}, found {s}")
        return (found[s],)

    return one_loss, None if counts is None else lambda batch: counts(batch)[s : s + 1]
