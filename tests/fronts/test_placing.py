"""Where new points are placed."""

from __future__ import annotations

import numpy as np

from stimulus_moo.fronts.placing import Trial, next_places, through


def test_the_largest_gap_is_halved() -> None:
    losses = np.array([[0.0, 1.0], [0.2, 0.9], [1.0, 0.0]])
    (place,) = next_places(losses, [], 1)
    assert place.neighbours == (1, 2)
    assert place.reference == [0.0, 0.0]
    r = np.array(place.preference)
    assert np.isclose(r[0] * 0.6, r[1] * 0.45)  # the ray passes through the middle of the gap


def test_units_of_the_losses_do_not_matter() -> None:
    losses = np.array([[0.0, 1.0], [0.3, 0.8], [1.0, 0.0]])
    scale = np.array([1e-3, 50.0])
    (place,), (scaled,) = next_places(losses, [], 1), next_places(losses * scale, [], 1)
    first, second = (np.array(one.preference) for one in (place, scaled))
    assert place.neighbours == scaled.neighbours
    assert np.isclose(second[0] / second[1], first[0] / first[1] * scale[1] / scale[0])


def test_a_gap_without_a_point_is_not_tried_again() -> None:
    losses = np.array([[0.0, 1.0], [1.0, 0.0]])
    (first,) = next_places(losses, [], 1)
    trials = [Trial(2, first.neighbours, through(first.preference, first.reference))]
    for new in ([1.0, 0.0], [0.95, 0.01], [1.0, 1.0]):  # an end again, close to it, dominated
        assert (0, 1) not in {p.neighbours for p in next_places(np.vstack([losses, [new]]), trials, 3)}
    near = next_places(np.vstack([losses, [0.95, 0.01]]), trials, 3)
    assert [place.neighbours for place in near] == [(2, 1)]


def test_several_places_at_once_are_in_different_gaps() -> None:
    losses = np.array([[0.0, 1.0], [0.5, 0.5], [1.0, 0.0]])
    found = next_places(losses, [], 3)
    assert len(found) == 2  # one for each gap
    assert {place.neighbours for place in found} == {(0, 1), (1, 2)}


def test_dominated_points_are_not_neighbours() -> None:
    losses = np.array([[0.0, 1.0], [0.9, 1.05], [1.0, 0.0]])
    (place,) = next_places(losses, [], 1)
    assert place.neighbours == (0, 2)


def test_three_losses_fill_the_simplex() -> None:
    losses = np.eye(3)
    found = next_places(losses, [], 12)
    directions = np.array([1.0 / np.array(place.preference) for place in found])
    directions /= directions.sum(1, keepdims=True)
    apart = np.linalg.norm(directions[:, None] - directions[None], axis=2) + np.eye(len(found))
    assert apart.min() > 0.15
    assert np.allclose(np.sort(directions[0]), 1.0 / 3.0, atol=0.05)  # the middle first
