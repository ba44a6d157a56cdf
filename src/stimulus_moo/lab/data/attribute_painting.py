"""Drawing of the synthetic images from their labels: textures, marks, tints, noise."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from stimulus_moo.lab.data.attribute_effects import apply
from stimulus_moo.lab.data.attribute_marks import MARGIN, SIDE, stamp
from stimulus_moo.lab.data.attribute_table import ATTRIBUTES, GRAIN, MARKS, TEXTURES, TINTS

_SENSOR_NOISE = 0.03


def paint(labels: NDArray[np.bool_], generator: np.random.Generator) -> NDArray[np.float32]:
    """Draw one image per row of labels.

    The random numbers do not depend on the labels, so changing one label changes only that attribute of the image.

    Args:
        labels: n x 40, in the order of ``ATTRIBUTES``.
        generator: random generator.

    Returns:
        Images n x 3 x 32 x 32 in [0, 1].
    """
    n, full = len(labels), SIDE + 2 * MARGIN
    present = {attribute.name: labels[:, column] for column, attribute in enumerate(ATTRIBUTES)}
    canvas = np.empty((n, 3, full, full), np.float32)
    canvas[:] = _background(n, generator)[:, :, np.newaxis, np.newaxis]
    for texture in TEXTURES:
        apply(canvas, texture, present[texture.name], generator)
    for mark in MARKS:
        stamp(canvas, mark, present[mark.name], generator)
    for tint in TINTS:
        apply(canvas, tint, present[tint.name], generator)
    images = canvas[:, :, MARGIN:-MARGIN, MARGIN:-MARGIN]
    noise = generator.standard_normal(images.shape, np.float32)
    level = _SENSOR_NOISE + GRAIN.contrast * present[GRAIN.name].astype(np.float32)
    return (images + level[:, np.newaxis, np.newaxis, np.newaxis] * noise).clip(0.0, 1.0)


def _background(n: int, generator: np.random.Generator) -> NDArray[np.float64]:
    return generator.uniform(0.38, 0.62, (n, 1)) + generator.uniform(-0.12, 0.12, (n, 3))
