"""Curves over seeds: alignment, bands, thinning, smoothing."""

import numpy as np
import pytest

from stimulus_moo.lab.report.curves import (
    aggregate,
    evaluations,
    loss_curve,
    smooth,
    stationarity_curve,
    thin,
    weight_curve,
)
from stimulus_moo.lab.report.groups import group_runs

from ..fake_runs import fake_run, fake_runs


def column(*values: float) -> np.ndarray:
    return np.array(values, dtype=float)[:, None]


def test_seeds_at_the_same_points_are_averaged() -> None:
    x = np.array([1.0, 2.0])
    curve = aggregate([(x, column(1, 4)), (x, column(3, 8))])
    assert curve is not None
    assert curve.mean.ravel().tolist() == [2, 6]
    assert (curve.low.ravel().tolist(), curve.high.ravel().tolist()) == ([1, 4], [3, 8])
    assert curve.seeds == 2


def test_seeds_at_other_points_are_interpolated_where_all_were_measured() -> None:
    curve = aggregate([(np.array([0.0, 10.0]), column(0, 10)), (np.array([5.0, 20.0]), column(5, 20))])
    assert curve is not None
    assert curve.x.tolist() == [5, 10]
    np.testing.assert_allclose(curve.low.ravel(), [5, 10])  # both lie on y = x
    np.testing.assert_allclose(curve.high.ravel(), [5, 10])


def test_values_that_are_not_finite_are_left_out() -> None:
    x = np.array([1.0, 2.0, 3.0])
    curve = aggregate([(x, column(1, np.inf, 3))])
    assert curve is not None
    assert curve.x.tolist() == [1, 3]


def test_nothing_measured_gives_no_curve() -> None:
    assert aggregate([]) is None
    assert aggregate([(np.array([]), np.empty((0, 0)))]) is None
    assert aggregate([(np.array([1.0]), column(np.nan))]) is None


def test_disjoint_seeds_give_no_curve() -> None:
    assert aggregate([(np.array([1.0, 2.0]), column(1, 1)), (np.array([3.0, 4.0]), column(1, 1))]) is None


def test_iterations_count_from_one() -> None:
    (group,) = group_runs(fake_runs(2, ("mgd",), 2, steps=30))
    curve = loss_curve(group.entries[0], "iterations")
    assert curve is not None
    assert curve.x.tolist() == [10, 20, 30]


def test_losses_end_with_the_mean_and_the_worst_task() -> None:
    (group,) = group_runs(fake_runs(3, ("mgd",), 1, steps=30))
    curve = loss_curve(group.entries[0], "gradients")
    assert curve is not None
    assert curve.mean.shape == (3, 5)
    np.testing.assert_allclose(curve.mean[:, 3], curve.mean[:, :3].mean(axis=1))
    np.testing.assert_allclose(curve.mean[:, 4], curve.mean[:, :3].max(axis=1))


def test_a_diverged_seed_ends_the_curve_of_all() -> None:
    runs = [fake_run("mgd", 0, ("a", "b"), steps=60), fake_run("mgd", 1, ("a", "b"), steps=60, diverge=True)]
    (group,) = group_runs(runs)
    curve = loss_curve(group.entries[0], "iterations")
    assert curve is not None
    assert curve.x.tolist() == [10, 20, 30]


def test_weights_sum_to_one_at_every_iteration() -> None:
    (group,) = group_runs(fake_runs(4, ("stimulus",), 2, steps=30))
    curve = weight_curve(group.entries[0])
    assert curve is not None
    assert len(curve.x) == 30
    np.testing.assert_allclose(curve.mean.sum(axis=1), 1)


def test_the_summary_counts_as_the_last_evaluation_once() -> None:
    run = fake_run("mgd", 0, ("a", "b"), steps=30)
    assert len(evaluations(run, "full_losses")) == 3
    run.summary.update(step=34, full_losses=[0.1, 0.2])
    assert evaluations(run, "full_losses")[-1]["full_losses"] == [0.1, 0.2]


def test_stationarity_that_was_never_evaluated_gives_no_curve() -> None:
    (group,) = group_runs(fake_runs(2, ("mgd",), 1, steps=30, every=1000))
    assert stationarity_curve(group.entries[0], "gradients") is None


@pytest.mark.parametrize("count", [1, 2, 999, 1000, 1001, 123_457])
def test_thinning_keeps_both_ends_and_at_most_a_thousand(count: int) -> None:
    rows = thin(count)
    assert len(rows) <= 1000
    assert (rows[0], rows[-1]) == (0, count - 1)
    assert (np.diff(rows) > 0).all()


def test_smoothing_leaves_a_constant_and_the_window_of_one() -> None:
    values = np.random.default_rng(0).random((50, 2))
    np.testing.assert_allclose(smooth(np.full((50, 2), 0.3), 7), 0.3)
    np.testing.assert_allclose(smooth(values, 1), values)
    assert smooth(values, 9).std() < values.std()
