"""Synthetic images with 40 binary attributes, a substitute for CelebA that needs no files."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import ndtri
from torch import Tensor

from stimulus_moo.lab.data.attribute_painting import paint
from stimulus_moo.lab.data.attribute_table import ATTRIBUTES
from stimulus_moo.lab.data.task_data import TaskData
from stimulus_moo.options import positive_integer, seed_number

_FACTORS = 5  # latent factors behind the correlations


def load_attributes(*, n_train: int = 1024, n_test: int = 512, seed: int = 0) -> TaskData:
    """Generate synthetic images with 40 attributes to predict, a substitute for CelebA that needs no files.

    Every attribute is a visible shape, colour or texture. They differ in size, contrast, occlusion and decoys, and thus
    in difficulty. They occur in 6 to 55 percent of the images and are correlated, positively or negatively, so the
    tasks compete for the capacity of a small model. Several share a location.

    Args:
        n_train: training samples.
        n_test: test samples, drawn independently.
        seed: seed of labels and images.

    Returns:
        ``train`` and ``test`` hold images (float32 in [0, 1], n x 3 x 32 x 32) and labels (float32, n x 40,
        0 or 1). ``synthetic`` is True.

    Raises:
        InvalidOption: a size or the seed is out of range.

    >>> data = load_attributes(n_train=16, n_test=4)
    >>> data.name, data.synthetic, [tuple(tensor.shape) for tensor in data.train]
    ('synthetic-attributes', True, [(16, 3, 32, 32), (16, 40)])
    """
    n_train, n_test = positive_integer("n_train", n_train), positive_integer("n_test", n_test)
    seed = seed_number(seed)
    train, test = (_draw(n, np.random.default_rng([seed, split])) for split, n in enumerate((n_train, n_test)))
    tasks = tuple(attribute.name for attribute in ATTRIBUTES)
    return TaskData("synthetic-attributes", train, test, tasks, True, f"synthetic, drawn with seed {seed}")


def _draw(n: int, generator: np.random.Generator) -> tuple[Tensor, Tensor]:
    labels = draw_labels(n, generator)
    return torch.from_numpy(paint(labels, generator)), torch.from_numpy(labels.astype(np.float32))


def draw_labels(n: int, generator: np.random.Generator) -> NDArray[np.bool_]:
    """Draw correlated labels, n x 40, with the given frequency of each attribute.

    Attribute a is present if w_a f + sqrt(1 - w_a^2) e exceeds a threshold, where f is one of five Gaussian factors
    and e is independent Gaussian noise. Two attributes of one factor correlate with the sign of the product of their
    weights w.

    Args:
        n: number of samples.
        generator: random generator.
    """
    index = np.arange(len(ATTRIBUTES))
    weight = 0.85 * np.cos(index)  # fixed, of both signs and many sizes
    factor = generator.standard_normal((n, _FACTORS))[:, index % _FACTORS]
    score = weight * factor + np.sqrt(1.0 - weight**2) * generator.standard_normal((n, len(index)))
    share = np.array([attribute.share for attribute in ATTRIBUTES])
    return np.asarray(score > ndtri(1.0 - share), dtype=np.bool_)
