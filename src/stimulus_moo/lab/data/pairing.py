"""Pairing of images on one canvas, for the two-task data sets MultiMNIST and digits."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from stimulus_moo.lab.data.errors import DataError

Integers = NDArray[np.int64]


def draw_pairs(labels: NDArray[Any], n: int, generator: np.random.Generator) -> tuple[Integers, Integers]:
    """Draw ``n`` ordered pairs of samples whose classes differ.

    The first of a pair is uniform over all samples, the second uniform over those of another class.

    Args:
        labels: one class per sample.
        n: number of pairs.
        generator: random generator.

    Returns:
        The indices of the first and of the second samples.

    Raises:
        DataError: there are fewer than two classes.

    >>> first, second = draw_pairs(np.array([0, 0, 1, 2]), 100, np.random.default_rng(0))
    >>> bool((np.array([0, 0, 1, 2])[first] == np.array([0, 0, 1, 2])[second]).any())
    False
    """
    classes, class_of, counts = np.unique(labels, return_inverse=True, return_counts=True)
    if len(classes) < 2:
        raise DataError(f"pairs of different digits need at least two classes, found {len(classes)}")
    by_class = np.argsort(class_of, kind="stable")
    starts = np.cumsum(counts) - counts
    first = generator.integers(len(labels), size=n)
    own = class_of[first]
    position = generator.integers(len(labels) - counts[own])
    position += np.where(position >= starts[own], counts[own], 0)  # skip the class of the first sample
    return first, by_class[position]


def overlay(first: NDArray[Any], second: NDArray[Any], canvas: int) -> NDArray[Any]:
    """Put two stacks of square images on square canvases and keep the brighter pixel where they overlap.

    Args:
        first: images for the top-left corner, n x side x side.
        second: images for the bottom-right corner, of the same shape.
        canvas: side of the canvas, at least the images' side.

    Returns:
        An array n x canvas x canvas of the images' dtype.

    >>> overlay(np.full((1, 2, 2), 3), np.full((1, 2, 2), 5), 3)[0].tolist()
    [[3, 3, 0], [3, 5, 5], [0, 5, 5]]
    """
    side = first.shape[1]
    result = np.zeros((len(first), canvas, canvas), first.dtype)
    result[:, :side, :side] = first
    corner = result[:, canvas - side :, canvas - side :]
    np.maximum(corner, second, out=corner)
    return result
