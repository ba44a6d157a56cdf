"""Rules with kept weights for the tests of the core, and a dense model of what they must give."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from stimulus_moo import Estimator, Filtered, Fixed, Full, MiniBatch, MultiGradient, Page, Recursive, Storm, Tracking
from tests.database import ANCHOR, COLUMNS, _adaptive, _soon
from tests.harness import cut, jacobian, two_heads, two_losses

BATCHES = cut(COLUMNS, 6) * 3


@dataclass(frozen=True)
class KeptRule:
    """An estimator with the options under which weights are kept."""

    build: Callable[[], Estimator]
    options: dict[str, Any] = field(default_factory=dict)
    weighting: Callable[[], Any] = lambda: None

    def make(self, model: nn.Module | None = None, losses: Any = two_losses, **options: Any) -> MultiGradient:
        model = two_heads() if model is None else model
        return MultiGradient(model, losses, self.build(), **{"weighting": self.weighting(), **self.options, **options})


EVERY, AT_ANCHORS, AUTO = {"reweigh": 3}, {"reweigh": "anchor"}, {"reweigh": "auto"}
SKETCH = {"gramian": "sketch"}

RULES: dict[str, KeptRule] = {
    "mini-batch": KeptRule(MiniBatch, EVERY),
    "full": KeptRule(lambda: Full(ANCHOR), EVERY),
    "tracking": KeptRule(lambda: Tracking(0.3), EVERY),
    "storm": KeptRule(lambda: Storm(0.3), EVERY),
    "filtered": KeptRule(lambda: Filtered(probe=2), EVERY),
    "recursive": KeptRule(lambda: Recursive(ANCHOR, 3), AT_ANCHORS),
    "recursive, adaptive": KeptRule(lambda: Recursive(_adaptive(), 3), AT_ANCHORS),
    "page": KeptRule(lambda: Page(ANCHOR, 0.4), AT_ANCHORS),
    "mini-batch, auto": KeptRule(MiniBatch, AUTO),
    "recursive, auto": KeptRule(lambda: Recursive(ANCHOR, 3), AUTO),
    "mini-batch, sketch": KeptRule(MiniBatch, SKETCH),
    "storm, sketch": KeptRule(lambda: Storm(0.3), EVERY | SKETCH),
    "recursive, sketch": KeptRule(lambda: Recursive(_adaptive(), 3), AT_ANCHORS | SKETCH),
    "adaptive, stalled": KeptRule(lambda: _soon(ANCHOR), EVERY),
    "adaptive, stream": KeptRule(_soon, EVERY),
    "fixed": KeptRule(lambda: Recursive(ANCHOR, 3), weighting=lambda: Fixed([0.3, 0.7])),
}


class Dense:
    """r_t of a rule as one vector, from a second copy of the model and plain autograd.

    ``before_each`` is called before each evaluation, to set the random state.
    """

    def __init__(
        self, model: nn.Module, losses: Any, keep: float, before_each: Callable[[], Any] | None = None
    ) -> None:
        self.model, self.losses, self.keep = model, losses, keep
        self.before_each = before_each or (lambda: None)
        self.last: Any = None
        self.r: Any = 0.0

    def rows(self, batch: Any, model: nn.Module | None = None) -> Tensor:
        self.before_each()
        return jacobian(self.model if model is None else model, self.losses, batch)

    def step(self, batch: Any, weights: Tensor, *, fresh: bool) -> Tensor:
        """r_t = lambda . g(x_t) + keep (r_{t-1} - lambda . g(x_{t-1})); without the second term if ``fresh``."""
        weights = weights.double()
        row = weights @ self.rows(batch)
        if not fresh and self.keep:
            row = row + self.keep * (self.r - weights @ self.rows(batch, self.last))
        self.last, self.r = copy.deepcopy(self.model), row
        return row
