"""Weightings of the objectives: one file per rule, and the exact solver as plain functions."""

from stimulus_moo.weightings.averaged import Averaged
from stimulus_moo.weightings.balanced import Balanced
from stimulus_moo.weightings.base import LossAware, Weighting
from stimulus_moo.weightings.bounded import Bounded
from stimulus_moo.weightings.fixed import Fixed
from stimulus_moo.weightings.min_norm import MinNorm
from stimulus_moo.weightings.names import WEIGHTINGS
from stimulus_moo.weightings.projected_descent import ProjectedDescent
from stimulus_moo.weightings.ray import Ray
from stimulus_moo.weightings.smoothed import Smoothed
from stimulus_moo.weightings.solver import kkt_residual, min_norm_weights, project_simplex

__all__ = [
    "WEIGHTINGS",
    "Averaged",
    "Balanced",
    "Bounded",
    "Fixed",
    "LossAware",
    "MinNorm",
    "ProjectedDescent",
    "Ray",
    "Smoothed",
    "Weighting",
    "kkt_residual",
    "min_norm_weights",
    "project_simplex",
]
