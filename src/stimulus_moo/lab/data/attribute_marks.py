"""Shapes of the synthetic images, drawn on all images of an attribute at once."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from stimulus_moo.lab.data.attribute_table import COLOURS, Mark

Floats = NDArray[np.floating]
SIDE = 32
MARGIN = 2  # around the canvas, so that shifted shapes at the border fit
_CELL = 8
_PATCH = _CELL + 2 * MARGIN
_SHIFTS = np.array([(row, column) for row in (-1, 0, 1) for column in (-1, 0, 1)])
_COLOUR_SPREAD = 0.08


def _farther(y: Floats, x: Floats) -> Floats:
    return np.maximum(abs(y), abs(x))


# Signed distance to the edge of the shape, positive inside, at offsets y and x from its centre, for radius r.
SHAPES: dict[str, Callable[[Floats, Floats, float], Floats]] = {
    "disc": lambda y, x, r: r - np.hypot(y, x),
    "square": lambda y, x, r: 0.85 * r - _farther(y, x),
    "diamond": lambda y, x, r: r - abs(y) - abs(x),
    "triangle": lambda y, x, r: np.minimum(0.9 * r - y, (y + r) / 1.8 - abs(x)),
    "ring": lambda y, x, r: 0.8 - abs(np.hypot(y, x) - 0.8 * r),
    "cross": lambda y, x, r: np.minimum(0.9 - abs(abs(y) - abs(x)), r - _farther(y, x)),
    "plus": lambda y, x, r: np.minimum(0.9 - np.minimum(abs(y), abs(x)), r - _farther(y, x)),
    "dash": lambda y, x, r: np.minimum(1.0 - abs(y), 1.2 * r - abs(x)),
    "bar": lambda y, x, r: np.minimum(1.0 - abs(x), 1.2 * r - abs(y)),
    "slash": lambda y, x, r: np.minimum(1.1 - abs(y + x), r - _farther(y, x)),
    "backslash": lambda y, x, r: np.minimum(1.1 - abs(y - x), r - _farther(y, x)),
    "dots": lambda y, x, r: 0.5 * r - np.hypot(y, abs(x) - 0.6 * r),
}


def stamp(canvas: Floats, mark: Mark, present: NDArray[np.bool_], generator: np.random.Generator) -> None:
    """Draw one mark, its decoys and its occlusions in place, on the patch around its cell.

    Args:
        canvas: images with a margin on each side, n x 3 x 36 x 36.
        mark: the mark.
        present: which images have the attribute.
        generator: random generator; the numbers drawn do not depend on ``present``.
    """
    n = len(canvas)
    shift = generator.integers(len(_SHIFTS), size=n)
    opacity = mark.contrast * generator.uniform(0.8, 1.0, n)
    colour = (COLOURS[mark.colour] + generator.normal(0.0, _COLOUR_SPREAD, (n, 3))).clip(0.0, 1.0)
    decoyed = ~present & (generator.random(n) < 0.5)
    rows, columns = (slice(_CELL * index, _CELL * index + _PATCH) for index in mark.cell)
    patch = canvas[:, :, rows, columns]
    for shape, drawn in ((mark.shape, present), (mark.decoy, decoyed)):
        if shape:
            mask = _templates(shape, mark.radius)[shift[drawn]] * opacity[drawn, np.newaxis, np.newaxis]
            patch[drawn] += mask[:, np.newaxis] * (colour[drawn, :, np.newaxis, np.newaxis] - patch[drawn])
    _cover(patch, mark.occluded, generator)


def _cover(patch: Floats, share: float, generator: np.random.Generator) -> None:
    """Cover the upper or lower half of the cell with grey, in a fraction of the images."""
    n = len(patch)
    covered, lower, grey = generator.random(n) < share, generator.random(n) < 0.5, generator.uniform(0.2, 0.8, n)
    half = _PATCH // 2
    for hidden, span in ((covered & ~lower, slice(MARGIN, half)), (covered & lower, slice(half, -MARGIN))):
        patch[hidden, :, span, MARGIN:-MARGIN] = grey[hidden, np.newaxis, np.newaxis, np.newaxis]


def _templates(shape: str, radius: float) -> NDArray[np.float32]:
    """Return the opacity of the shape on a patch for every shift, with edges blurred over one pixel."""
    centre = np.arange(_PATCH, dtype=np.float32) - (_PATCH - 1) / 2
    y = centre[np.newaxis, :, np.newaxis] - _SHIFTS[:, 0, np.newaxis, np.newaxis]
    x = centre[np.newaxis, np.newaxis, :] - _SHIFTS[:, 1, np.newaxis, np.newaxis]
    return (SHAPES[shape](y, x, radius) + 0.5).clip(0.0, 1.0).astype(np.float32)
