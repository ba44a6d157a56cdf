"""Stochastic multi-objective learning in PyTorch with variance-reduced multi-gradients."""

from stimulus_moo.anchors import AdaptiveBatch
from stimulus_moo.errors import (
    InvalidBatch,
    InvalidLosses,
    InvalidOption,
    InvalidWeights,
    MissingDependency,
    ModelChanged,
    NonFiniteError,
    StateMismatch,
    StimulusError,
    StimulusWarning,
)
from stimulus_moo.estimators import Estimator, Full, MiniBatch, Page, Recursive, Storm, Tracking, Update
from stimulus_moo.multigradient import MultiGradient, Step
from stimulus_moo.optim import HeavyBall
from stimulus_moo.random_clock import RandomClock
from stimulus_moo.weightings import (
    Fixed,
    MinNorm,
    ProjectedDescent,
    Smoothed,
    Weighting,
    kkt_residual,
    min_norm_weights,
    project_simplex,
)

__version__ = "0.1.0"
