"""Weights where some objectives have no row: those of the rule for the others, and 0."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from stimulus_moo import Averaged, Fixed, InvalidOption, MinNorm, ProjectedDescent, Smoothed
from stimulus_moo._engine.solving import weigh
from stimulus_moo.weightings.base import Weighting, as_weighting

ROWS = torch.tensor([[1.0, 0.0, 2.0], [0.0, 0.0, 0.0], [0.0, 2.0, 1.0]], dtype=torch.float64)
WHOLE = torch.tensor([[1.0, 0.0, 2.0], [3.0, 1.0, 0.0], [0.0, 2.0, 1.0]], dtype=torch.float64)
GRAMIAN, FULL, PART = ROWS @ ROWS.T, WHOLE @ WHOLE.T, [0, 2]
SMALL = GRAMIAN[PART][:, PART]

RULES: dict[str, Callable[[], Weighting]] = {
    "min-norm": MinNorm,
    "normalised": lambda: MinNorm(normalise=True),
    "smoothed": lambda: Smoothed(MinNorm(), 0.5),
    "averaged": lambda: Averaged(MinNorm(), 0.5),
    "descent": lambda: ProjectedDescent(0.1, 0.01),
    "descent, normalised": lambda: ProjectedDescent(0.1, normalise=True),
    "callable": lambda: as_weighting(lambda gramian: MinNorm()(gramian)),
}


def spread(weights: Tensor) -> Tensor:
    return torch.stack([weights[0], torch.zeros((), dtype=torch.float64), weights[1]])


@pytest.mark.parametrize("name", RULES)
def test_weights_are_those_of_the_others(name: str) -> None:
    found = weigh(RULES[name](), GRAMIAN, [3.0, 0.0, 1.0])
    assert torch.allclose(found, spread(RULES[name]()(SMALL)), rtol=1e-12)


@pytest.mark.parametrize("name", RULES)
def test_a_rule_goes_on_with_all_objectives(name: str) -> None:
    rule = RULES[name]()
    rule(FULL)
    assert weigh(rule, GRAMIAN, [3.0, 0.0, 1.0])[1] == 0
    after = weigh(rule, FULL, [3.0, 1.0, 1.0])
    assert after.shape == (3,)
    assert after.isfinite().all()
    assert (after >= 0).all()


def test_a_row_without_a_count_that_is_not_zero_is_weighed() -> None:
    assert torch.equal(weigh(MinNorm(), FULL, [1.0, 0.0, 1.0]), MinNorm()(FULL))
    assert torch.equal(weigh(MinNorm(), GRAMIAN, [1.0, 2.0, 1.0]), MinNorm()(GRAMIAN))


def test_preferences_are_those_of_the_others() -> None:
    found = weigh(MinNorm(preference=[1.0, 5.0, 2.0]), GRAMIAN, [1.0, 0.0, 1.0])
    assert torch.allclose(found, spread(MinNorm(preference=[1.0, 2.0])(SMALL)), rtol=1e-12)
    with pytest.raises(InvalidOption, match=r"one number per objective \(3\), found 2"):
        weigh(MinNorm(preference=[1.0, 2.0]), GRAMIAN, [1.0, 0.0, 1.0])


def test_smoothed_weights_of_the_others_are_remembered() -> None:
    rule = Smoothed(MinNorm(), 0.5)
    first = rule(FULL)
    found = weigh(rule, GRAMIAN, [1.0, 0.0, 1.0])
    assert rule.previous is not None
    assert torch.allclose(rule.previous, 0.5 * first + 0.5 * spread(MinNorm()(SMALL)))
    assert torch.allclose(found[PART], rule.previous[PART])


def test_averaged_products_without_rows_stay() -> None:
    rule = Averaged(MinNorm(), 0.5)
    rule(GRAMIAN)
    weigh(rule, GRAMIAN, [1.0, 0.0, 1.0])
    assert rule.gramian is not None
    assert torch.allclose(rule.gramian, GRAMIAN)
    weigh(rule, FULL, [1.0, 1.0, 1.0])
    rule = Averaged(MinNorm(), 0.5)
    rule(FULL)
    weigh(rule, GRAMIAN, [1.0, 0.0, 1.0])
    assert rule.gramian is not None
    assert torch.equal(rule.gramian[1], FULL[1])


def test_descent_leaves_the_share_of_the_others() -> None:
    rule = ProjectedDescent(0.1)
    first = rule(FULL)
    weigh(rule, GRAMIAN, [1.0, 0.0, 1.0])
    assert rule.previous is not None
    assert rule.previous[1] == first[1]
    assert float(rule.previous.sum()) == pytest.approx(1.0)


def test_fixed_weights_stay_fixed() -> None:
    assert weigh(Fixed([0.2, 0.3, 0.5]), GRAMIAN, [1.0, 0.0, 1.0]).tolist() == [0.2, 0.3, 0.5]
