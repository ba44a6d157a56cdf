"""Whole Pareto fronts of any model: traced, saved, looked at and navigated. Uses only public names of the library."""

from stimulus_moo.fronts.front import Front, FrontPoint
from stimulus_moo.fronts.navigate import Move, navigate
from stimulus_moo.fronts.trace import pareto_front

__all__ = ["Front", "FrontPoint", "Move", "navigate", "pareto_front"]
