"""Stochastic multi-objective learning in PyTorch with variance-reduced multi-gradients."""

from stimulus_moo.anchors import AdaptiveBatch
from stimulus_moo.errors import (
    DistributedError,
    InvalidBatch,
    InvalidLosses,
    InvalidOption,
    InvalidWeights,
    MissingDependency,
    ModelChanged,
    NonFiniteError,
    NotWritten,
    RankFailed,
    RankMismatch,
    StateMismatch,
    StimulusError,
    StimulusWarning,
)
from stimulus_moo.estimators import Estimator, Filtered, Full, MiniBatch, Page, Recursive, Storm, Tracking, Update
from stimulus_moo.fit import Progress, fit
from stimulus_moo.memory import MemoryEstimate
from stimulus_moo.methods import AUTO_METHOD, METHODS, PAPER_METHODS, Method
from stimulus_moo.metrics import Measurement, estimator_error, measure, pareto_stationarity
from stimulus_moo.multigradient import MultiGradient, Step
from stimulus_moo.optim import HeavyBall, Safeguard, SmoothnessLR
from stimulus_moo.probe import Observation
from stimulus_moo.random_clock import RandomClock
from stimulus_moo.result import History, Result
from stimulus_moo.tensorboard import TensorBoardLogger
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

__all__ = [
    "AUTO_METHOD",
    "METHODS",
    "PAPER_METHODS",
    "AdaptiveBatch",
    "DistributedError",
    "Estimator",
    "Filtered",
    "Fixed",
    "Full",
    "HeavyBall",
    "History",
    "InvalidBatch",
    "InvalidLosses",
    "InvalidOption",
    "InvalidWeights",
    "Measurement",
    "MemoryEstimate",
    "Method",
    "MinNorm",
    "MiniBatch",
    "MissingDependency",
    "ModelChanged",
    "MultiGradient",
    "NonFiniteError",
    "NotWritten",
    "Observation",
    "Page",
    "Progress",
    "ProjectedDescent",
    "RandomClock",
    "RankFailed",
    "RankMismatch",
    "Recursive",
    "Result",
    "Safeguard",
    "Smoothed",
    "SmoothnessLR",
    "StateMismatch",
    "Step",
    "StimulusError",
    "StimulusWarning",
    "Storm",
    "TensorBoardLogger",
    "Tracking",
    "Update",
    "Weighting",
    "estimator_error",
    "fit",
    "kkt_residual",
    "measure",
    "min_norm_weights",
    "pareto_stationarity",
    "project_simplex",
]
