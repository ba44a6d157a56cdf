import numpy as np
import pytest

from stimulus_moo.lab.data import DataError
from stimulus_moo.lab.data.pairing import draw_pairs, overlay


def test_pairs_are_of_different_classes_and_uniform_over_the_allowed_ones():
    labels = np.array([3, 0, 0, 7, 3, 0])
    n = 60_000
    first, second = draw_pairs(labels, n, np.random.default_rng(0))
    assert (labels[first] != labels[second]).all()
    observed = np.zeros((6, 6))
    np.add.at(observed, (first, second), 1 / n)
    allowed = labels[:, None] != labels
    expected = np.where(allowed, 1 / 6 / allowed.sum(axis=1, keepdims=True), 0)
    # five standard deviations of a share below 0.06 estimated from 60,000 draws
    np.testing.assert_allclose(observed, expected, atol=5 * np.sqrt(0.06 / n))


def test_one_class_cannot_be_paired():
    with pytest.raises(DataError, match="at least two classes, found 1"):
        draw_pairs(np.zeros(4), 2, np.random.default_rng(0))


def test_overlay_equals_the_pixel_by_pixel_definition():
    generator = np.random.default_rng(1)
    first, second = generator.integers(0, 9, (2, 3, 4, 4))
    expected = np.zeros((3, 6, 6))
    for image in range(3):
        for row in range(6):
            for column in range(6):
                a = first[image, row, column] if row < 4 and column < 4 else 0
                b = second[image, row - 2, column - 2] if row >= 2 and column >= 2 else 0
                expected[image, row, column] = max(a, b)
    np.testing.assert_array_equal(overlay(first, second, 6), expected)
