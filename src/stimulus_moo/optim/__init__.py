"""Optimizers and step sizes: the step in batch -> objective -> estimator -> weighting -> step."""

from stimulus_moo.optim.dog import DoG
from stimulus_moo.optim.heavy_ball import HeavyBall
from stimulus_moo.optim.second_moment import SecondMoment

__all__ = ["DoG", "HeavyBall", "SecondMoment"]
