"""Estimators of each objective's gradient: one file per rule."""

from stimulus_moo.estimators.adaptive import Adaptive
from stimulus_moo.estimators.base import Estimator, Update
from stimulus_moo.estimators.filtered import Filtered
from stimulus_moo.estimators.full import Full
from stimulus_moo.estimators.mini_batch import MiniBatch
from stimulus_moo.estimators.page import Page
from stimulus_moo.estimators.recursive import Recursive
from stimulus_moo.estimators.storm import Storm
from stimulus_moo.estimators.tracking import Tracking

__all__ = ["Adaptive", "Estimator", "Filtered", "Full", "MiniBatch", "Page", "Recursive", "Storm", "Tracking", "Update"]
