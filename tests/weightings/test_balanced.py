"""Balanced weights: exact, invariant to the scales of the losses, and never pinned by a zero row."""

import pytest
import torch
from torch import Tensor, nn

from stimulus_moo import Balanced, InvalidOption, MiniBatch, MinNorm, MultiGradient, StateMismatch


def rows_of(objectives: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(objectives, 7, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("objectives", [1, 2, 3, 8])
def test_the_direction_is_the_min_norm_point_of_unit_rows_at_the_geometric_mean_of_their_lengths(
    objectives: int,
) -> None:
    rows = rows_of(objectives, objectives) * torch.logspace(-3, 3, objectives, dtype=torch.float64)[:, None]
    lengths = rows.norm(dim=1)
    unit = rows / lengths[:, None]
    expected = lengths.log().mean().exp() * (MinNorm()(unit @ unit.T) @ unit)
    torch.testing.assert_close(Balanced()(rows @ rows.T) @ rows, expected, rtol=1e-9, atol=1e-12)


def test_scaling_a_loss_changes_the_direction_by_a_common_factor() -> None:
    rows = rows_of(3, 0)
    scales = torch.tensor([1.0, 1e-4, 50.0], dtype=torch.float64)
    scaled = rows * scales[:, None]
    d, other = Balanced()(rows @ rows.T) @ rows, Balanced()(scaled @ scaled.T) @ scaled
    torch.testing.assert_close(other, d * scales.log().mean().exp(), rtol=1e-9, atol=0)


def test_a_training_with_adam_does_not_depend_on_the_scales_of_the_losses() -> None:
    def train(scale: float) -> Tensor:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)).double()
        x, y = torch.randn(64, 4, dtype=torch.float64), torch.randn(64, 2, dtype=torch.float64)
        factors = torch.tensor([1.0, scale], dtype=torch.float64)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01, eps=0.0)
        mg = MultiGradient(
            model,
            lambda m, b: (m(b[0]) - b[1]).square().mean(0) * factors,
            MiniBatch(),
            Balanced(memory=0.9),
            metric=optimizer,
            reweigh=3,
        )
        for k in range(24):
            pick = torch.arange(8 * k, 8 * k + 8) % 64
            mg.backward((x[pick], y[pick]))
            optimizer.step()
        return torch.cat([p.detach().reshape(-1) for p in model.parameters()])

    torch.testing.assert_close(train(0.01), train(1.0), rtol=1e-6, atol=1e-8)


def test_objectives_with_a_zero_row_get_no_weight_and_do_not_stop_the_others() -> None:
    rows = rows_of(3, 1)
    rows[1] = 0.0
    weights = Balanced()(rows @ rows.T)
    assert float(weights[1]) == 0.0
    kept = rows[[0, 2]]
    torch.testing.assert_close(weights[[0, 2]], Balanced()(kept @ kept.T), rtol=1e-12, atol=0)
    assert MinNorm()(rows @ rows.T).tolist() == [0.0, 1.0, 0.0]  # whose step is zero
    assert Balanced()(torch.zeros(2, 2, dtype=torch.float64)).tolist() == [0.0, 0.0]


def test_the_direction_vanishes_where_unit_rows_are_opposed() -> None:
    rows = torch.tensor([[3.0, 0.0], [-0.1, 0.0]], dtype=torch.float64)
    assert float((Balanced()(rows @ rows.T) @ rows).norm()) < 1e-12


def test_the_memory_averages_cosines_and_logarithms_of_lengths() -> None:
    first, second = rows_of(3, 2), 5.0 * rows_of(3, 3)
    weighting = Balanced(memory=0.75)
    weighting(first @ first.T)
    found = weighting(second @ second.T)
    lengths = [rows.norm(dim=1) for rows in (first, second)]
    cosines = [(rows / n[:, None]) @ (rows / n[:, None]).T for rows, n in zip((first, second), lengths, strict=True)]
    cosine = 0.75 * cosines[0] + 0.25 * cosines[1]
    length = (0.75 * lengths[0].log() + 0.25 * lengths[1].log()).exp()
    expected = MinNorm()(cosine) * length.log().mean().exp() / length
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)


def test_missing_objectives_keep_their_means() -> None:
    weighting, rows = Balanced(memory=0.5), rows_of(3, 4)
    weighting(rows @ rows.T)
    kept = weighting.logarithms[1].clone()  # type: ignore[index]
    other = rows_of(3, 5)
    other[1] = 0.0
    weights = weighting(other @ other.T)
    assert float(weights[1]) == 0.0
    assert weighting.logarithms[1] == kept  # type: ignore[index]
    fresh = Balanced(memory=0.5)
    fresh.load_state_dict(weighting.state_dict())
    assert torch.equal(fresh(rows @ rows.T), weighting(rows @ rows.T))
    with pytest.raises(StateMismatch, match="cosines must be None or a square matrix"):
        Balanced(memory=0.5).load_state_dict(
            {**weighting.state_dict(), "cosines": torch.zeros(2, 3, dtype=torch.float64)}
        )


def test_a_preference_decides_the_ratio_of_decreases_relative_to_the_lengths_of_the_rows() -> None:
    rows = torch.eye(3, 7, dtype=torch.float64) * torch.tensor([[1.0], [10.0], [0.1]], dtype=torch.float64)
    preference = torch.tensor([1.0, 2.0, 0.5], dtype=torch.float64)
    d = Balanced(preference=preference.tolist())(rows @ rows.T) @ rows
    ratios = (rows @ d) / (rows.norm(dim=1) * preference)
    torch.testing.assert_close(ratios, ratios[:1].expand(3), rtol=1e-9, atol=0)


def test_equal_preferences_change_nothing() -> None:
    rows = rows_of(3, 2)
    expected = Balanced()(rows @ rows.T)
    torch.testing.assert_close(Balanced(preference=[5.0] * 3)(rows @ rows.T), expected, rtol=1e-9, atol=1e-12)


def test_a_preference_needs_one_positive_number_per_objective() -> None:
    with pytest.raises(InvalidOption, match=r"preference\[1\] must be a finite number above 0, found 0.0"):
        Balanced(preference=[1.0, 0.0])
    with pytest.raises(InvalidOption, match=r"one number per objective \(3\), found 2"):
        Balanced(preference=[1.0, 2.0])(torch.eye(3, dtype=torch.float64))
