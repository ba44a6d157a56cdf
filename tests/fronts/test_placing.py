"""Where new points are placed."""

from __future__ import annotations

import numpy as np
import pytest

from stimulus_moo import hypervolume
from stimulus_moo.fronts.placing import best, distinct, next_places

START = [2.0, 2.0]


def test_the_ray_is_the_diagonal_of_the_largest_gap() -> None:
    losses = np.array([[0.0, 1.0], [0.2, 0.9], [1.0, 0.0]])
    (place,) = next_places(losses, [], 1, START)
    assert place.neighbours == (1, 2)
    r, z = np.array(place.preference), np.array(place.reference)
    assert np.isclose(*(r * (np.array([1.0, 0.9]) - z)))  # through both corners of the rectangle
    assert np.isclose(*(r * (np.array([0.2, 0.0]) - z)))
    assert (z <= 1e-12).all()


def test_units_of_the_losses_do_not_matter() -> None:
    losses = np.array([[0.0, 1.0], [0.3, 0.8], [1.0, 0.0]])
    scale = np.array([1e-3, 50.0])
    (place,), (scaled,) = next_places(losses, [], 1, START), next_places(losses * scale, [], 1, START)
    first, second = (np.array(one.preference) for one in (place, scaled))
    assert place.neighbours == scaled.neighbours
    assert np.isclose(second[0] / second[1], first[0] / first[1] * scale[1] / scale[0])


def test_a_gap_without_a_point_is_not_tried_again() -> None:
    losses = np.array([[0.0, 1.0], [0.6, 0.5], [1.0, 0.0]])
    first, second = next_places(losses, [], 2, START)
    tried = [(first.preference, first.reference)]
    assert [place.neighbours for place in next_places(losses, tried, 2, START)] == [second.neighbours]
    near = np.vstack([losses, losses[first.neighbours[0]] + np.array([0.01, -0.01])])  # close to one of its ends
    pairs = {place.neighbours for place in next_places(near, tried, 9, START)}
    assert (3, first.neighbours[1]) not in pairs
    middle = np.vstack([losses, losses[list(first.neighbours)].mean(0)])
    assert len(next_places(middle, tried, 9, START)) == 3  # both halves are open


def test_several_places_at_once_are_in_different_gaps() -> None:
    losses = np.array([[0.0, 1.0], [0.5, 0.5], [1.0, 0.0]])
    found = next_places(losses, [], 3, START)
    assert len(found) == 2  # one for each gap
    assert {place.neighbours for place in found} == {(0, 1), (1, 2)}


def test_dominated_and_equal_points_are_left_out() -> None:
    losses = np.array([[0.0, 1.0], [0.9, 1.05], [1.0, 0.0], [0.001, 0.999], [0.5, 0.5]])
    assert distinct(losses, 21) == [0, 2, 4]


def test_a_negligible_advantage_does_not_keep_a_point() -> None:
    losses = np.array([[0.0, 1.0], [1.0, 1e-6], [1.2, 0.0]])
    assert distinct(losses, 21) == [0, 1]


def test_a_single_point_has_a_ray_through_the_units_of_its_fall() -> None:
    losses = np.array([[0.5, 1.0]])
    (place,) = next_places(losses, [], 1, [2.5, 2.0])
    r, z = np.array(place.preference), np.array(place.reference)
    assert np.isclose(*(r * (losses[0] - z)))
    assert r[1] / r[0] == pytest.approx(2.0)  # the losses have fallen by 2 and by 1
    assert next_places(losses, [(place.preference, place.reference)], 1, [2.5, 2.0]) == []


def test_points_are_exchanged_while_this_gains() -> None:
    random = np.random.default_rng(0)
    losses = random.dirichlet(np.ones(3), 30) ** 0.5
    chosen = best(losses, 8)
    scaled = (losses - losses.min(0)) / np.ptp(losses, axis=0)
    whole = hypervolume(scaled[chosen], [1.1] * 3)
    ends = set(losses.argmin(0).tolist())
    assert ends <= set(chosen)
    for out in set(chosen) - ends:
        rest = [k for k in chosen if k != out]
        assert all(hypervolume(scaled[[*rest, k]], [1.1] * 3) <= whole + 1e-12 for k in range(30))


def test_the_points_with_most_hypervolume_are_kept() -> None:
    losses = np.array([[0.0, 1.0], [0.1, 0.1], [0.11, 0.09], [1.0, 0.0]])
    assert best(losses, 3) in ([0, 1, 3], [0, 2, 3])
    assert best(losses, 4) == [0, 1, 2, 3]


def test_three_losses_begin_with_the_centre_and_the_corners() -> None:
    losses = np.eye(3)
    centre, *corners = next_places(losses, [], 4, [1.0] * 3)
    assert centre.preference == [1.0] * 3
    for s, place in enumerate(corners):
        assert int(np.argmin(place.preference)) == s
        assert place.reference == pytest.approx([-0.1] * 3)
    tried = [(place.preference, place.reference) for place in (centre, *corners)]
    (middle,) = next_places(losses, tried, 1, [1.0] * 3)
    direction = 1.0 / np.array(middle.preference)
    assert (direction / direction.sum()).max() < 0.6
    assert set(middle.neighbours) == {0, 1, 2}


def test_corners_are_found_if_all_ends_have_the_same_small_loss() -> None:
    losses = np.array([[0.0, 1e-7, 1.0], [1.0, 0.0, 0.0]])  # of three ends, none has a large second loss
    _, first, second = next_places(losses, [], 3, [1.2, 0.9, 1.5])
    assert int(np.argmin(second.preference)) == 1
    assert max(first.preference) < 20 * min(first.preference)


def test_directions_that_are_almost_equal_do_not_break_the_interpolation() -> None:
    points = np.array([[0.0, 0.0, 1.0], [1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.6, 0.59, 0.54]])
    first = next_places(points, [], 4, [1.0] * 3)
    tried = [(place.preference, place.reference) for place in first]
    for k in range(3):  # results next to each other, at slightly different distances
        points = np.vstack([points, points[3] * (1.0 + 1e-4 * k) + np.array([1e-4 * k, 0.0, -1e-4 * k])])
        tried += [(1.0 / (points[-1] + 0.1), [-0.1] * 3)]
    (place,) = next_places(points, tried, 1, [1.0] * 3)
    direction = 1.0 / np.array(place.preference)
    assert np.abs(direction / direction.sum() - 1.0 / 3.0).max() > 0.1  # elsewhere
