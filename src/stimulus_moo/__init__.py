"""Stochastic multi-objective learning in PyTorch with variance-reduced multi-gradients."""

from stimulus_moo._engine.memory import MemoryEstimate
from stimulus_moo._engine.observation import Observation
from stimulus_moo._engine.proposal import Proposal
from stimulus_moo._engine.step import Step
from stimulus_moo.anchors import AdaptiveBatch
from stimulus_moo.deprecated import old_names
from stimulus_moo.errors import (
    ConcurrentUse,
    DistributedError,
    InvalidBatch,
    InvalidLosses,
    InvalidOption,
    InvalidWeights,
    MissingDependency,
    ModelChanged,
    NonFiniteError,
    NotCopyable,
    NotWritten,
    RankFailed,
    RankMismatch,
    StateMismatch,
    StimulusError,
    StimulusWarning,
)
from stimulus_moo.estimators import (
    Adaptive,
    Estimator,
    Filtered,
    Full,
    MiniBatch,
    Page,
    Recursive,
    Storm,
    Tracking,
    Update,
)
from stimulus_moo.fit import fit
from stimulus_moo.methods import METHODS, PAPER_METHODS, Method
from stimulus_moo.metrics import (
    Measurement,
    delta_m,
    estimator_error,
    hypervolume,
    mean_rank,
    measure,
    paired_test,
    pareto_stationarity,
    relative_changes,
    worst_task,
)
from stimulus_moo.multigradient import MultiGradient
from stimulus_moo.optim import DoG, HeavyBall, SecondMoment
from stimulus_moo.safeguard import Safeguard
from stimulus_moo.training.history import History, Result
from stimulus_moo.training.metrics_logger import MetricsLogger
from stimulus_moo.training.progress import Progress
from stimulus_moo.training.random_clock import RandomClock
from stimulus_moo.training.tensorboard import TensorBoardLogger
from stimulus_moo.weightings import (
    WEIGHTINGS,
    Averaged,
    Balanced,
    Bounded,
    Fixed,
    LossAware,
    MinNorm,
    ProjectedDescent,
    Ray,
    Smoothed,
    Weighting,
    kkt_residual,
    min_norm_weights,
    project_simplex,
)

__version__ = "0.2.0"

__all__ = [
    "METHODS",
    "PAPER_METHODS",
    "WEIGHTINGS",
    "Adaptive",
    "AdaptiveBatch",
    "Averaged",
    "Balanced",
    "Bounded",
    "ConcurrentUse",
    "DistributedError",
    "DoG",
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
    "LossAware",
    "Measurement",
    "MemoryEstimate",
    "Method",
    "MetricsLogger",
    "MinNorm",
    "MiniBatch",
    "MissingDependency",
    "ModelChanged",
    "MultiGradient",
    "NonFiniteError",
    "NotCopyable",
    "NotWritten",
    "Observation",
    "Page",
    "Progress",
    "ProjectedDescent",
    "Proposal",
    "RandomClock",
    "RankFailed",
    "RankMismatch",
    "Ray",
    "Recursive",
    "Result",
    "Safeguard",
    "SecondMoment",
    "Smoothed",
    "StateMismatch",
    "Step",
    "StimulusError",
    "StimulusWarning",
    "Storm",
    "TensorBoardLogger",
    "Tracking",
    "Update",
    "Weighting",
    "delta_m",
    "estimator_error",
    "fit",
    "hypervolume",
    "kkt_residual",
    "mean_rank",
    "measure",
    "min_norm_weights",
    "paired_test",
    "pareto_stationarity",
    "project_simplex",
    "relative_changes",
    "worst_task",
]

__getattr__ = old_names(
    __name__,
    {
        "AUTO_METHOD": ("stimulus_moo.deprecated:AUTO_METHOD", "pass the name 'auto', or 'filtered-m' for what it was"),
        "SmoothnessLR": ("stimulus_moo.optim:DoG", "it is DoG, without the option reach"),
    },
)
