"""Pairs of overlapping digits from scikit-learn's bundled data: a small MultiMNIST without download."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from stimulus_moo.lab.data.dependencies import optional
from stimulus_moo.lab.data.pairing import draw_pairs, overlay
from stimulus_moo.lab.data.task_data import TaskData
from stimulus_moo.options import positive_integer, seed_number

CANVAS = 12
_LARGEST = 16.0  # scikit-learn's digits have grey values from 0 to 16
_TEST_SHARE = 0.25  # fraction of the digits used for test samples only


def load_digits(*, n_train: int = 2048, n_test: int = 512, seed: int = 0) -> TaskData:
    """Load pairs of handwritten digits; the tasks are to classify the top-left and the bottom-right one.

    Each sample combines two 8 x 8 digits of different classes on a 12 x 12 canvas. They overlap in 4 x 4 pixels, where
    the brighter value is kept. No digit image occurs in both training and test.

    Args:
        n_train: training samples.
        n_test: test samples.
        seed: seed of the split and the pairs.

    Returns:
        ``train`` and ``test`` hold images (float32 in [0, 1], n x 1 x 12 x 12), left labels and right labels
        (int64).

    Raises:
        InvalidOption: a size or the seed is out of range.
        MissingDependency: scikit-learn is not installed.

    >>> data = load_digits(n_train=64, n_test=16)
    >>> [tuple(tensor.shape) for tensor in data.train]
    [(64, 1, 12, 12), (64,), (64,)]
    """
    n_train, n_test = positive_integer("n_train", n_train), positive_integer("n_test", n_test)
    generator = np.random.default_rng(seed_number(seed))
    bundled = optional("sklearn.datasets").load_digits()
    order = generator.permutation(len(bundled.images))
    held_out = round(len(order) * _TEST_SHARE)
    train = _pairs(bundled, order[held_out:], n_train, generator)
    test = _pairs(bundled, order[:held_out], n_test, generator)
    return TaskData("digits", train, test, ("left", "right"), False, f"scikit-learn's digits, paired with seed {seed}")


def _pairs(bundled: Any, chosen: NDArray[np.int64], n: int, generator: np.random.Generator) -> tuple[Tensor, ...]:
    images, labels = (
        bundled.images[chosen].astype(np.float32) / _LARGEST,
        bundled.target[chosen].astype(np.int64),
    )
    first, second = draw_pairs(labels, n, generator)
    canvas = overlay(images[first], images[second], CANVAS)[:, np.newaxis]
    return torch.from_numpy(canvas), torch.from_numpy(labels[first]), torch.from_numpy(labels[second])
