"""The point of the front that ``fit`` trains to: a ray or bounds, as a weighting, and what was missed of the bounds."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from stimulus_moo.errors import InvalidOption
from stimulus_moo.options import natural_number, real, share
from stimulus_moo.training.history import Result
from stimulus_moo.weightings import Bounded, Fixed, LossAware, Ray

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

    def resolved(self, least: Callable[[int], float], known: Mapping[int, float]) -> "Target":
        """Return the target with all bounds as numbers.

        ``least(s)`` is the best value of objective s; it is not called for bounds that are ``known``.
        """
        bounds = dict(self.bounds or {}) | {s: known[s] for s in self.shares or {} if s in known}
        for s, above in (self.shares or {}).items():
            if s not in bounds:
                best = least(s)
                bounds[s] = best + above * abs(best)
                logger.info("objective %d alone reaches %g; its bound is %g", s, best, bounds[s])
        return replace(self, bounds=dict(sorted(bounds.items())) or None)

    @property
    def found(self) -> dict[int, tuple[float, float]] | None:
        """The bounds that were given as shares: the share, and the number that it led to; None without any."""
        bounds = self.bounds or {}
        return {s: (above, bounds[s]) for s, above in (self.shares or {}).items()} or None

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


class Alone(Fixed):
    """All weight on one objective."""

    def __init__(self, objective: int) -> None:
        super().__init__()
        self.objective = objective

    def constant(self, objectives: int) -> Tensor:
        """Return 1 for the objective and 0 for the others."""
        if self.objective >= objectives:
            raise InvalidOption(f"bounds must name objectives below {objectives}, found {self.objective}")
        weights = torch.zeros(objectives, dtype=torch.float64)
        weights[self.objective] = 1.0
        return weights
