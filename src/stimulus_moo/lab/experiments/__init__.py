"""The paper's experiments and the claims it never shows, one file each, settings as data."""

from stimulus_moo.lab.experiment import Experiment
from stimulus_moo.lab.experiments import (
    digits,
    momentum_ablation,
    multimnist,
    pareto_front,
    ranking,
    ranking_scale,
    rates,
    riverflow,
    scaling_law,
    strongly_convex,
)
from stimulus_moo.lab.experiments.attributes import ATTRIBUTES, CELEBA
from stimulus_moo.lab.study import Study

_EXPERIMENTS = (digits.EXPERIMENT, multimnist.EXPERIMENT, CELEBA, ATTRIBUTES, riverflow.EXPERIMENT, ranking.EXPERIMENT)
_STUDIES = (
    momentum_ablation.STUDY,
    strongly_convex.STUDY,
    scaling_law.STUDY,
    rates.STUDY,
    pareto_front.STUDY,
    ranking_scale.STUDY,
)

#: Methods times seeds, with loss curves.
EXPERIMENTS: dict[str, Experiment] = {experiment.name: experiment for experiment in _EXPERIMENTS}
#: Claims checked by many small runs.
STUDIES: dict[str, Study] = {study.name: study for study in _STUDIES}

__all__ = ["EXPERIMENTS", "STUDIES"]
