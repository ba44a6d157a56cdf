"""Anchors: a full pass over the data, or an adaptive draw with its variance estimate."""

from stimulus_moo.anchors.adaptive import AdaptiveBatch
from stimulus_moo.anchors.base import Anchor, FullAnchor, FullPass, Tally, as_anchor
from stimulus_moo.anchors.variance import GROUPS, Spread

__all__ = ["GROUPS", "AdaptiveBatch", "Anchor", "FullAnchor", "FullPass", "Spread", "Tally", "as_anchor"]
