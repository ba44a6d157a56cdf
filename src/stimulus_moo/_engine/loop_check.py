"""Checks the user's loop during its first steps, and the weights now and then; costs a comparison per step after."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from stimulus_moo._engine.batch_check import check_batch
from stimulus_moo._engine.step import Step
from stimulus_moo.errors import DOCS
from stimulus_moo.weightings.min_norm import MinNorm

if TYPE_CHECKING:
    from stimulus_moo.multigradient import MultiGradient

logger = logging.getLogger("stimulus_moo")

FIRST_STEPS = 4  #: between so many steps the parameters must move; a warm-up may start with a learning rate of 0
EVERY = 16  #: steps between two looks at the weights
IGNORED = 32  #: looks at which a weight must be about 0 before it is reported
_HEAD = 64  # entries of each parameter that are compared

_PAGE = f"see {DOCS}guides/own-loop.html#the-first-step-is-checked"

NOT_STEPPED = (
    "backward was called again before any parameter changed, and has overwritten the gradients. Call optimizer.step() "
    "after backward, with an optimizer on the parameters of this model. backward does not accumulate: for gradient "
    f"accumulation, pass it the large batch and micro_batch= to evaluate it in pieces. {_PAGE}"
)
NOT_MOVED = (
    f"optimizer.step() did not change any parameter in {FIRST_STEPS} steps: is zero_grad called between backward and "
    f"step, or is the learning rate 0? backward overwrites p.grad, so zero_grad is not needed. {_PAGE}"
)
NOT_DIVIDED = (
    "every process has evaluated the same anchor, so an anchor costs that many times as much; give "
    f"each its part, say DataLoader(Subset(data, range(rank, len(data), processes))). {_PAGE}"
)


class LoopCheck:
    """What was seen of the loop so far."""

    def __init__(self) -> None:
        self.due = True  # is there something to do before the next step?
        self._batch_checked = False
        self._left = FIRST_STEPS  # comparisons of the parameters still to be made
        self._still = 0  # steps after which no entry had changed
        self._seen: tuple[list[int], list[Tensor]] | None = None  # after the last backward
        self._low: list[int] = []  # looks in a row at which each weight was about 0
        self._start: list[float] = []  # the losses when that began

    def before(self, mg: MultiGradient, batch: Any) -> None:
        """Check the first batch, and whether the parameters moved since the last step."""
        if not self._batch_checked:
            self._batch_checked = True
            start = perf_counter()
            findings = check_batch(mg, batch)
            logger.info("checked the first batch in %.1f ms; check=False skips it", 1e3 * (perf_counter() - start))
            for finding in findings:
                mg.warn(finding.subject, finding.message)
        if self._seen is not None:
            self._compare(mg)
        self.due = False

    def after(self, mg: MultiGradient, step: Step) -> None:
        """Remember where the parameters are, and look at the weights."""
        if self._left and not step.skipped and mg.sq_norm:
            self._seen, self.due = _fingerprint(mg.objective.parameters), True
        if step.anchored and mg.store.undivided:
            mg.warn("divided", NOT_DIVIDED)
        if (mg.sq_norm == 0.0 or not mg.t % EVERY) and not step.skipped and _plain_min_norm(mg):
            self._look_at_weights(mg, step)

    def _compare(self, mg: MultiGradient) -> None:
        assert self._seen is not None
        (versions, heads), self._seen = self._seen, None
        now, new_heads = _fingerprint(mg.objective.parameters)
        self._left -= 1
        if len(heads) == len(new_heads) and all(map(_same, heads, new_heads)):
            self._still += 1
            if now == versions:
                self._left = 0
                mg.warn("stepped", NOT_STEPPED)
            elif self._still == FIRST_STEPS:
                mg.warn("moved", NOT_MOVED)

    def _look_at_weights(self, mg: MultiGradient, step: Step) -> None:
        weights, losses, label = step.weights.tolist(), step.losses.tolist(), mg.objective.label
        if mg.sq_norm == 0.0 and len(weights) > 1 and max(weights) == 1.0:
            mg.warn("zero", _zero_message(label(weights.index(1.0)), mg.t - 1))
            return
        self._low = self._low or [0] * len(weights)
        self._start = self._start or losses
        for s, weight in enumerate(weights):
            self._low[s] = self._low[s] + 1 if weight < 1e-3 else 0
            if self._low[s] <= 1:
                self._start[s] = losses[s]
            elif self._low[s] == IGNORED and losses[s] >= 0.9 * self._start[s] > 0.0:
                mg.warn("ignored", _ignored_message(label(s), losses[s]))


def _zero_message(label: str, step: int) -> str:
    return (
        f"the gradient of {label} is exactly zero at step {step}, so min-norm weights give it all the weight and "
        "nothing moves: it is at a minimum of its own, such as a fairness penalty at a symmetric start. Use "
        "Balanced(), which leaves such losses out, or another start; MinNorm(normalise=True) helps where a gradient is "
        f"small and not zero. {_PAGE}"
    )


def _ignored_message(label: str, loss: float) -> str:
    return (
        f"{label} has had weight 0 for {EVERY * IGNORED} steps and stays at {loss:.4g}: min-norm weights follow the "
        f"losses with the smallest gradients. Use Balanced() or MinNorm(normalise=True), or scale the losses. {_PAGE}"
    )


def _plain_min_norm(mg: MultiGradient) -> bool:
    return isinstance(mg.weighting, MinNorm) and not mg.weighting.normalise


def _fingerprint(parameters: Sequence[Tensor]) -> tuple[list[int], list[Tensor]]:
    """Return how often each parameter was written to, and copies of a few of its entries."""
    return [p._version for p in parameters], [p.detach().flatten()[:_HEAD].clone() for p in parameters]


def _same(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and torch.equal(one, other)
