"""The experiments: one file each, with the paper's settings as data."""

from stimulus_moo.lab.experiment import Experiment
from stimulus_moo.lab.experiments import digits, multimnist, ranking, riverflow
from stimulus_moo.lab.experiments.attributes import ATTRIBUTES, CELEBA

_ALL = (
    digits.EXPERIMENT,
    digits.SCALED,
    multimnist.EXPERIMENT,
    CELEBA,
    ATTRIBUTES,
    riverflow.EXPERIMENT,
    ranking.EXPERIMENT,
)

#: Every experiment by name.
EXPERIMENTS: dict[str, Experiment] = {experiment.name: experiment for experiment in _ALL}

__all__ = ["EXPERIMENTS"]
