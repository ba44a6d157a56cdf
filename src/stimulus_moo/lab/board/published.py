"""Published figures of other authors' runs, shown beside ours. Their splits, models and budgets differ."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Published:
    """A figure from elsewhere: what it is, its value, and where it is from."""

    what: str
    value: str
    source: str


_PADDLE = "PaddleRec, models/multitask/readme.md, 400 epochs"
_FRONTS = "papers on EPO (Mahapatra and Rajan 2020) and GMOOAR (Chen and Kwok 2022): fronts of many models"


def _volumes(epo: str, gmooar: str) -> tuple[Published, ...]:
    return (
        Published("hypervolume at (2, 2), EPO", epo, _FRONTS),
        Published("hypervolume at (2, 2), GMOOAR", gmooar, _FRONTS),
    )


#: By problem.
PUBLISHED: dict[str, tuple[Published, ...]] = {
    "census-2": (
        Published("AUC income / marital status, shared bottom", "0.9312 / 0.9926", _PADDLE),
        Published("AUC income / marital status, MMoE", "0.9447 / 0.9932", _PADDLE),
    ),
    "multimnist": _volumes("2.95", "3.02"),
    "multifashion": _volumes("2.31", "2.33"),
    "fashion+mnist": _volumes("2.86", "2.92"),
    "adult": _volumes("3.342", "3.344"),
    "compas": _volumes("3.709", "3.719"),
    "credit": _volumes("3.119", "3.123"),
}
