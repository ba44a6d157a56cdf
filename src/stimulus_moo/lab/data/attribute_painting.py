"""How the synthetic attributes are drawn: every attribute at once over all images that have it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from stimulus_moo.lab.data.attribute_table import COLOURS, EFFECTS, MARKS, Effect, Mark

Floats = NDArray[np.floating]
SIDE = 32
_MARGIN = 2  # so that a shifted shape at the border stays on the canvas
_CELL = 8
_PATCH = _CELL + 2 * _MARGIN
_SHIFTS = np.array([(row, column) for row in (-1, 0, 1) for column in (-1, 0, 1)])
_SENSOR_NOISE = 0.03
_COLOUR_SPREAD = 0.08

SHAPES: dict[str, Callable[[Floats, Floats, float], Floats]] = {
    "disc": lambda y, x, r: r - np.hypot(y, x),
    "square": lambda y, x, r: 0.85 * r - np.maximum(abs(y), abs(x)),
    "diamond": lambda y, x, r: r - abs(y) - abs(x),
    "triangle": lambda y, x, r: np.minimum(0.9 * r - y, (y + r) / 1.8 - abs(x)),
    "ring": lambda y, x, r: 0.8 - abs(np.hypot(y, x) - 0.8 * r),
    "cross": lambda y, x, r: np.minimum(0.9 - abs(abs(y) - abs(x)), r - np.maximum(abs(y), abs(x))),
    "plus": lambda y, x, r: np.minimum(0.9 - np.minimum(abs(y), abs(x)), r - np.maximum(abs(y), abs(x))),
    "dash": lambda y, x, r: np.minimum(1.0 - abs(y), 1.2 * r - abs(x)),
    "bar": lambda y, x, r: np.minimum(1.0 - abs(x), 1.2 * r - abs(y)),
    "slash": lambda y, x, r: np.minimum(1.1 - abs(y + x), r - np.maximum(abs(y), abs(x))),
    "backslash": lambda y, x, r: np.minimum(1.1 - abs(y - x), r - np.maximum(abs(y), abs(x))),
    "dots": lambda y, x, r: 0.5 * r - np.hypot(y, abs(x) - 0.6 * r),
}
"""Distance to the shape's edge, positive inside, at offsets y and x from its centre, for the radius r."""


def paint(labels: NDArray[np.bool_], generator: np.random.Generator) -> Floats:
    """Draw one image per row of labels.

    The random numbers drawn do not depend on the labels, so two calls that differ in one label alone give
    images that differ in that attribute alone.

    Args:
        labels: n x 40, in the order of ``EFFECTS`` and then ``MARKS``.
        generator: the source of randomness.

    Returns:
        Images n x 3 x 32 x 32 in [0, 1].
    """
    n, full = len(labels), SIDE + 2 * _MARGIN
    canvas = np.empty((n, 3, full, full), np.float32)
    canvas[:] = _background(n, generator)[:, :, np.newaxis, np.newaxis]
    effects = list(zip(EFFECTS, labels[:, : len(EFFECTS)].T, strict=True))
    for effect, present in effects[:_TEXTURES]:
        _apply(canvas, effect, present, generator)
    for mark, present in zip(MARKS, labels[:, len(EFFECTS) :].T, strict=True):
        _stamp(canvas, mark, present, generator)
    for effect, present in effects[_TEXTURES:]:
        _apply(canvas, effect, present, generator)
    images = canvas[:, :, _MARGIN:-_MARGIN, _MARGIN:-_MARGIN]
    images = images + _SENSOR_NOISE * generator.standard_normal(images.shape, np.float32)
    return images.clip(0.0, 1.0)


def _background(n: int, generator: np.random.Generator) -> Floats:
    brightness = generator.uniform(0.38, 0.62, (n, 1))
    return (brightness + generator.uniform(-0.12, 0.12, (n, 3))).astype(np.float32)


def _stamp(canvas: Floats, mark: Mark, present: NDArray[np.bool_], generator: np.random.Generator) -> None:
    """Draw one mark, its decoys and what covers it, on the patch around its cell."""
    n = len(canvas)
    shift = generator.integers(len(_SHIFTS), size=n)
    opacity = (mark.contrast * generator.uniform(0.8, 1.0, n)).astype(np.float32)
    colour = (
        (COLOURS[mark.colour] + generator.normal(0.0, _COLOUR_SPREAD, (n, 3)))
        .clip(0.0, 1.0)
        .astype(np.float32)
    )
    decoyed = ~present & (generator.random(n) < 0.5)
    covered, cover_side, cover_grey = (
        generator.random(n) < mark.occluded,
        generator.integers(2, size=n),
        generator.random(n),
    )
    rows, columns = (slice(_CELL * index, _CELL * index + _PATCH) for index in mark.cell)
    patch = canvas[:, :, rows, columns]
    for shape, drawn in ((mark.shape, present), (mark.decoy, decoyed)):
        if shape:
            mask = _templates(shape, mark.radius)[shift[drawn]] * opacity[drawn, np.newaxis, np.newaxis]
            patch[drawn] += mask[:, np.newaxis] * (colour[drawn, :, np.newaxis, np.newaxis] - patch[drawn])
    half = _PATCH // 2
    for side, span in enumerate((slice(_MARGIN, half), slice(half, -_MARGIN))):
        hidden = covered & (cover_side == side)
        patch[hidden, :, span, _MARGIN:-_MARGIN] = cover_grey[hidden, np.newaxis, np.newaxis, np.newaxis]


def _templates(shape: str, radius: float) -> Floats:
    """The shape's opacity on a patch, once per shift, with edges one pixel soft."""
    centre = np.arange(_PATCH, dtype=np.float32) - (_PATCH - 1) / 2
    y = centre[np.newaxis, :, np.newaxis] - _SHIFTS[:, 0, np.newaxis, np.newaxis]
    x = centre[np.newaxis, np.newaxis, :] - _SHIFTS[:, 1, np.newaxis, np.newaxis]
    return (SHAPES[shape](y, x, radius) + 0.5).clip(0.0, 1.0).astype(np.float32)


def _apply(
    canvas: Floats, effect: Effect, present: NDArray[np.bool_], generator: np.random.Generator
) -> None:
    strength = (effect.contrast * generator.uniform(0.8, 1.2, len(canvas))).astype(np.float32)
    phase = generator.uniform(0.0, 2.0 * np.pi, len(canvas)).astype(np.float32)
    seed = generator.integers(1 << 32)
    images, column = canvas[present], (slice(None), np.newaxis, np.newaxis, np.newaxis)
    canvas[present] = _EFFECTS[effect.name](
        images, strength[present][column], phase[present][column], int(seed)
    )


_axis = (np.arange(SIDE + 2 * _MARGIN, dtype=np.float32) - _MARGIN)  # fmt: skip
_Y, _X = _axis[:, np.newaxis], _axis[np.newaxis, :]
_RED, _BLUE = (np.array(COLOURS[name], np.float32)[:, np.newaxis, np.newaxis] for name in ("red", "blue"))
_EDGE = np.minimum(np.minimum(_Y, SIDE - 1 - _Y), np.minimum(_X, SIDE - 1 - _X)) < 2
_CORNER = ((np.hypot(_Y - SIDE / 2, _X - SIDE / 2) / (SIDE / 2)) ** 2).clip(0.0, 2.0)


def _wave(images: Floats, strength: Floats, angle: Floats) -> Floats:
    return images + strength * np.sin(angle)


def _blend(images: Floats, strength: Floats, towards: Floats) -> Floats:
    return images + strength * (towards - images)


_EFFECTS: dict[str, Callable[[Floats, Floats, Floats, int], Floats]] = {
    "horizontal_stripes": lambda i, s, p, _: _wave(i, s, 2 * np.pi / 5 * _Y + p),
    "vertical_stripes": lambda i, s, p, _: _wave(i, s, 2 * np.pi / 4 * _X + p),
    "diagonal_stripes": lambda i, s, p, _: _wave(i, s, 2 * np.pi / 7 * (_X + _Y) + p),
    "checkerboard": lambda i, s, p, _: (
        i + s * np.sign(np.sin(np.pi / 3 * _X + p) * np.sin(np.pi / 3 * _Y + p))
    ),
    "bright_top": lambda i, s, p, _: i + s * (1 - 2 * _Y / SIDE),
    "bright_left": lambda i, s, p, _: i + s * (1 - 2 * _X / SIDE),
    "frame": lambda i, s, p, _: np.where(_EDGE, i - s * i, i),
    "vignette": lambda i, s, p, _: i - s * _CORNER,
    "red_tint": lambda i, s, p, _: _blend(i, s, _RED),
    "blue_tint": lambda i, s, p, _: _blend(i, s, _BLUE),
    "dark": lambda i, s, p, _: i * (1 - s),
    "pale": lambda i, s, p, _: i + s * (1 - i),
    "grey": lambda i, s, p, _: _blend(i, s, i.mean(axis=1, keepdims=True)),
    "grain": lambda i, s, p, seed: i + s * np.random.default_rng(seed).standard_normal(i.shape, np.float32),
}
_TEXTURES = 8  # the first effects lie under the marks, the others over the whole image
