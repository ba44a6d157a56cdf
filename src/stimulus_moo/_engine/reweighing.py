"""From the options ``reweigh=`` and ``gramian=`` to a rule and to what a solve differentiates."""

from typing import Any

from stimulus_moo._engine.loss_forms import ALL_LOSSES, SKETCHED_LOSSES, LossForm
from stimulus_moo.errors import InvalidOption
from stimulus_moo.estimators import Estimator
from stimulus_moo.options import positive_integer
from stimulus_moo.weightings.reweigh import AtAnchors, Every, Reweigh, WhenRising

GRAMIANS = ("exact", "sketch")


def find_rule(reweigh: Any, gramian: str, estimator: Estimator) -> tuple[Reweigh | None, LossForm]:
    """Return when weights are solved for, and how; None where the estimator keeps all rows at every step."""
    rule = _rule(reweigh, estimator)
    if gramian == "exact":
        return rule, ALL_LOSSES
    if rule is None and estimator.remembers:
        raise InvalidOption(
            f"gramian must be 'exact' with reweigh=1 and {type(estimator).__name__}, which keeps all rows, found "
            "'sketch'; pass another reweigh"
        )
    return rule or Every(1), SKETCHED_LOSSES


def _rule(reweigh: Any, estimator: Estimator) -> Reweigh | None:
    name, anchored = type(estimator).__name__, estimator.anchor is not None
    if isinstance(reweigh, str):
        if reweigh == "auto":
            return WhenRising()
        if reweigh == "anchor" and anchored:
            return AtAnchors()
        needed = "a positive integer or 'auto'" if reweigh == "anchor" else "a positive integer, 'anchor' or 'auto'"
        without = f" with {name}, which has no anchors" if reweigh == "anchor" else ""
        raise InvalidOption(f"reweigh must be {needed}{without}, found {reweigh!r}")
    steps = positive_integer("reweigh", reweigh)
    if steps > 1 and anchored and estimator.remembers:
        raise InvalidOption(
            f"reweigh must be 1, 'anchor' or 'auto' with {name}, whose rows are complete at anchors only, found {steps}"
        )
    return Every(steps) if steps > 1 else None
