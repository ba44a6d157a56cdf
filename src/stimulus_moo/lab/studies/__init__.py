"""The studies: one claim each, checked by many small runs."""

from stimulus_moo.lab.studies import (
    momentum_ablation,
    pareto_front,
    ranking_scale,
    rates,
    scaling_law,
    strongly_convex,
)
from stimulus_moo.lab.study import Study

_ALL = (
    momentum_ablation.STUDY,
    strongly_convex.STUDY,
    scaling_law.STUDY,
    rates.STUDY,
    pareto_front.STUDY,
    ranking_scale.STUDY,
)

#: Every study by name.
STUDIES: dict[str, Study] = {study.name: study for study in _ALL}

__all__ = ["STUDIES"]
