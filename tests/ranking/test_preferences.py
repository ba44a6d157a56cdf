"""The epsilon-constraint weighting: it repairs what is violated, and turns no further than it must."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from stimulus_moo import (
    METHODS,
    Fixed,
    InvalidOption,
    MinNorm,
    MultiGradient,
    Recursive,
    Smoothed,
    Weighting,
    min_norm_weights,
)
from stimulus_moo.ranking import EpsilonConstraint
from stimulus_moo.ranking.preferences import preferred_weighting


def gramian(seed: int, labels: int = 5, width: int = 3) -> torch.Tensor:
    rows = torch.randn(labels, width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return rows @ rows.T


@pytest.mark.parametrize("seed", range(40))
def test_every_violated_label_descends_at_half_the_common_rate(seed: int) -> None:
    G = gramian(seed)
    violated = [s for s in range(5) if (seed >> s) & 1] or [0]
    constraint = EpsilonConstraint(dict.fromkeys(range(5), 0.5), Fixed([0.1, 0.2, 0.3, 0.2, 0.2]))
    constraint.measure([0.4 if s in violated else 0.6 for s in range(5)])
    weights = constraint(G)
    block = G[violated][:, violated]
    best = min_norm_weights(block)
    rate = float(best @ block @ best)
    # the min-norm weights are exact to 1e-10, relative to the rows' lengths
    assert ((G @ weights)[violated] >= 0.5 * rate - 1e-10 * float(G.diag().max())).all()
    assert float(weights.sum()) == pytest.approx(1.0)
    assert (weights >= 0).all()


def test_weights_are_left_alone_while_nothing_is_violated_or_the_preferred_step_repairs() -> None:
    G = torch.tensor([[1.0, 0.9], [0.9, 1.0]], dtype=torch.float64)
    constraint = EpsilonConstraint({0: 0.5}, Fixed([0.2, 0.8]))
    assert constraint(G).tolist() == [0.2, 0.8]
    constraint.measure([0.5, 0.0])  # at its floor; label 1 has none
    assert constraint.violated == []
    constraint.measure([0.4, 0.9])
    assert constraint.violated == [0]
    assert constraint(G).tolist() == [0.2, 0.8]  # falls at 0.92 of its own rate already


def test_a_missing_measurement_counts_as_violated() -> None:
    constraint = EpsilonConstraint({1: 0.5})
    constraint.measure([0.9, float("nan")])
    assert constraint.violated == [1]


def test_floors_that_exclude_each_other_hold_still() -> None:
    G = torch.tensor([[1.0, -1.0, 0.0], [-1.0, 1.0, 0.0], [0.0, 0.0, 1.0]], dtype=torch.float64)
    constraint = EpsilonConstraint({0: 0.5, 1: 0.5}, Fixed([0.8, 0.1, 0.1]))
    constraint.measure([0.0, 0.0, 0.0])
    weights = constraint(G)
    assert weights.tolist() == pytest.approx([0.5, 0.5, 0.0])


def test_state_goes_into_a_fresh_object() -> None:
    x = torch.randn(8, 3, generator=torch.Generator().manual_seed(0))

    def build() -> tuple[EpsilonConstraint, MultiGradient]:
        torch.manual_seed(0)
        constraint = EpsilonConstraint({1: 0.5}, Smoothed(MinNorm(), 0.5))
        model = torch.nn.Linear(3, 2)
        mg = MultiGradient(model, lambda m, b: m(b).square().mean(0), Recursive([x], period=3), constraint)
        return constraint, mg

    constraint, mg = build()
    constraint.measure([1.0, 0.1])
    mg.backward(x)
    fresh, other = build()
    other.load_state_dict(mg.state_dict())
    assert fresh.violated == [1]
    torch.testing.assert_close(other.backward(x[:4]).weights, mg.backward(x[:4]).weights, rtol=0, atol=0)


def test_training_keeps_a_floor_that_the_preference_alone_would_break() -> None:
    """Two parabolas on a line; the metric is minus the loss, and the preference is all for the second one."""
    torch.manual_seed(0)
    model = torch.nn.Linear(1, 1, bias=False)
    x = torch.ones(4, 1)

    def losses(m: torch.nn.Module, batch: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        w = m(batch).mean()
        return (w - 1).square(), (w + 1).square()

    constraint = EpsilonConstraint({0: -0.25}, Fixed([0.0, 1.0]))  # the first loss at most 0.25: w >= 0.5
    mg = MultiGradient(model, losses, Recursive([x], period=5), constraint)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(300):
        step = mg.backward(x)
        constraint.measure([-value for value in step.losses.tolist()])
        optimizer.step()
    assert model.weight.item() == pytest.approx(0.5, abs=0.15)


@pytest.mark.parametrize("method", list(METHODS))
def test_every_method_has_its_own_weighting(method: str) -> None:
    class Anything:
        weights, alpha, gamma, rho = None, 0.9, 0.1, 0.0

    own = METHODS[method].weighting(Anything())
    found = preferred_weighting(method, None, 2)
    assert type(found) is type(own)
    G = gramian(3, labels=2)
    torch.testing.assert_close(found(G), own(G), rtol=0, atol=0)


def test_preferences() -> None:
    G = torch.eye(2, dtype=torch.float64)
    assert preferred_weighting("stimulus", [1, 3], 2)(G).tolist() == pytest.approx(
        MinNorm(preference=[1, 3])(G).tolist()
    )
    assert preferred_weighting("vr-scalarisation", [1, 3], 2)(G).tolist() == [0.25, 0.75]
    decrease = G @ preferred_weighting("smgd", [1, 3], 2)(G)
    assert float(decrease[1] / decrease[0]) == pytest.approx(3.0)
    lengths = torch.tensor([1.0, 100.0], dtype=torch.float64)
    scaled = lengths[:, None] * G * lengths
    relative = scaled @ preferred_weighting("auto", [1, 3], 2)(scaled) / lengths
    assert float(relative[1] / relative[0]) == pytest.approx(3.0)  # whatever the scales of the losses


@pytest.mark.parametrize(
    ("method", "preference", "message"),
    [
        ("stimulus", [1.0], r"one positive number per label \(2\), found \[1.0\]"),
        ("stimulus", [1.0, 0.0], "one positive number per label"),
        ("stimulus", [1.0, np.inf], "one positive number per label"),
        ("moco", [1.0, 2.0], "'moco' computes its own weights"),
    ],
)
def test_preferences_that_cannot_work(method: str, preference: list[float], message: str) -> None:
    with pytest.raises(InvalidOption, match=message):
        preferred_weighting(method, preference, 2)


def test_constraints_that_cannot_work() -> None:
    with pytest.raises(InvalidOption, match="must be a Weighting"):
        EpsilonConstraint({0: 0.5}, lambda G: G[0])
    constraint = EpsilonConstraint({2: 0.5})
    constraint.measure([0.1, 0.1, 0.1])
    with pytest.raises(InvalidOption, match="labels below 2, found 2"):
        constraint(torch.eye(2, dtype=torch.float64))
    assert isinstance(constraint, Weighting)
