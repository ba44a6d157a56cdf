"""The database crossed with the properties that every entry has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.database import (
    ENGINES,
    ESTIMATORS,
    METHODS,
    OBJECTIVES,
    SUBJECTS,
    WEIGHTINGS,
    EstimatorInfo,
    MethodInfo,
    WeightingInfo,
)
from tests.properties import (
    check_cost_of_steps,
    check_deterministic,
    check_failed_step_never_happened,
    check_frozen_parameters,
    check_micro_batch,
    check_nan_never_enters,
    check_one_objective,
    check_permutation,
    check_resumes,
    check_same_point_difference_is_zero,
    check_silent_safeguard,
    check_weights,
)

pytestmark = pytest.mark.filterwarnings("ignore:::torchjd")  # its solvers warn on their own behalf
methods = pytest.mark.parametrize("method", METHODS)
estimators = pytest.mark.parametrize("estimator", ESTIMATORS)


def names(
    *,
    slow: tuple[type, ...],
    among: tuple[type, ...] = (MethodInfo, EstimatorInfo, WeightingInfo),
    where: Callable[[Any], bool] = lambda info: True,
) -> Any:
    """The subjects of these kinds as a parameter; those of the kinds in ``slow`` are left out of ``make quick``."""
    return pytest.mark.parametrize(
        "subject",
        [
            pytest.param(name, marks=[pytest.mark.slow] if isinstance(info, slow) else [])
            for name, info in SUBJECTS.items()
            if isinstance(info, among) and where(info)
        ],
    )


#: what decides the rows; weightings do not
rules = names(slow=(EstimatorInfo,), among=(MethodInfo, EstimatorInfo))


@methods
def test_two_runs_are_the_same(method: str) -> None:
    check_deterministic(METHODS[method])


@names(slow=(EstimatorInfo, WeightingInfo))
def test_resume_equals_no_interruption(subject: str) -> None:
    check_resumes(SUBJECTS[subject])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "engine"),
    [
        *(("stimulus-m+", name) for name in ("rowwise", "rowwise, in place", "batched", "batched, in place")),
        *(("moco+", name) for name in ("rowwise", "batched, in place")),
        ("filtered-m", "rowwise, in place"),
    ],
)
def test_resume_equals_no_interruption_in_every_engine(method: str, engine: str) -> None:
    with ENGINES[engine].used() as option:
        check_resumes(METHODS[method], engine=option)


@names(slow=(EstimatorInfo, WeightingInfo), where=lambda info: info.symmetric)
def test_permuting_objectives_permutes_weights_and_keeps_the_path(subject: str) -> None:
    check_permutation(SUBJECTS[subject])


@rules
def test_one_objective_is_the_single_objective_method(subject: str) -> None:
    check_one_objective(SUBJECTS[subject])  # type: ignore[arg-type]


@names(slow=(EstimatorInfo, WeightingInfo))
def test_a_failed_step_never_happened(subject: str) -> None:
    check_failed_step_never_happened(SUBJECTS[subject], "raises")


@pytest.mark.slow
@estimators
def test_a_step_with_a_nan_gradient_never_happened(estimator: str) -> None:
    check_failed_step_never_happened(ESTIMATORS[estimator], "nan gradient")


@rules
def test_nan_never_enters_the_rows(subject: str) -> None:
    check_nan_never_enters(SUBJECTS[subject], ENGINES["auto"])


@pytest.mark.slow
@pytest.mark.parametrize("engine", [name for name in ENGINES if "compiled" not in name])  # test_differentiation has it
def test_nan_never_enters_the_rows_in_any_engine(engine: str) -> None:
    check_nan_never_enters(METHODS["stimulus-m"], ENGINES[engine])


@rules
def test_frozen_and_unreached_parameters_have_no_gradient(subject: str) -> None:
    check_frozen_parameters(SUBJECTS[subject])


@pytest.mark.parametrize(
    ("estimator", "micro_batch"),
    [
        *((name, 4) for name in ESTIMATORS),
        *(pytest.param(name, (1, 5)[k % 2], marks=pytest.mark.slow) for k, name in enumerate(ESTIMATORS)),
    ],
)
def test_pieces_do_not_change_the_result(estimator: str, micro_batch: int) -> None:
    check_micro_batch(ESTIMATORS[estimator], micro_batch)


@methods
def test_pieces_do_not_change_the_method(method: str) -> None:
    check_micro_batch(METHODS[method], 5)


@pytest.mark.parametrize("subject", [name for name, info in SUBJECTS.items() if getattr(info, "telescopes", False)])
def test_same_point_difference_is_zero(subject: str) -> None:
    check_same_point_difference_is_zero(SUBJECTS[subject])


@methods
def test_a_silent_safeguard_changes_nothing(method: str) -> None:
    check_silent_safeguard(METHODS[method])


@pytest.mark.parametrize("micro_batch", [None, 4])
@estimators
def test_every_step_costs_what_its_rule_says(estimator: str, micro_batch: int | None) -> None:
    check_cost_of_steps(ESTIMATORS[estimator], micro_batch)


def pairs() -> list[tuple[str, str]]:
    """A third of all pairs of estimator and weighting: each estimator and each weighting has several."""
    rules, weights = ([name for name, info in table.items() if info.pairs] for table in (ESTIMATORS, WEIGHTINGS))
    return [(rule, weight) for i, rule in enumerate(rules) for j, weight in enumerate(weights) if (i + j) % 3 == 0]


@pytest.mark.slow
@pytest.mark.parametrize(("estimator", "weighting"), pairs())
def test_pairs_of_estimator_and_weighting_resume(estimator: str, weighting: str) -> None:
    check_resumes(ESTIMATORS[estimator], weighting=lambda: WEIGHTINGS[weighting].build(OBJECTIVES))


@pytest.mark.parametrize("weighting", WEIGHTINGS)
def test_weights_are_as_the_rule_says(weighting: str) -> None:
    check_weights(WEIGHTINGS[weighting])
