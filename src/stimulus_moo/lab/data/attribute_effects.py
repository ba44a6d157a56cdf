"""Textures and tints of the synthetic images, applied to all images of an attribute at once."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from stimulus_moo.lab.data.attribute_marks import MARGIN, SIDE
from stimulus_moo.lab.data.attribute_table import COLOURS, Effect

Floats = NDArray[np.floating]

_AXIS = np.arange(SIDE + 2 * MARGIN, dtype=np.float32) - MARGIN
_Y, _X = _AXIS[:, np.newaxis], _AXIS[np.newaxis, :]
_TO_EDGE = np.minimum(np.minimum(_Y, SIDE - 1 - _Y), np.minimum(_X, SIDE - 1 - _X))
_TO_CENTRE = np.hypot(_Y - SIDE / 2, _X - SIDE / 2) / (SIDE / 2)
_RED, _BLUE = (np.array(COLOURS[name], np.float32)[:, np.newaxis, np.newaxis] for name in ("red", "blue"))


def apply(canvas: Floats, effect: Effect, present: NDArray[np.bool_], generator: np.random.Generator) -> None:
    """Apply one effect in place.

    Args:
        canvas: images with a margin on each side, n x 3 x 36 x 36.
        effect: the effect.
        present: which images have the attribute.
        generator: random generator; the numbers drawn do not depend on ``present``.
    """
    strength = effect.contrast * generator.uniform(0.8, 1.2, (len(canvas), 1, 1, 1)).astype(np.float32)
    phase = generator.uniform(0.0, 2.0 * np.pi, (len(canvas), 1, 1, 1)).astype(np.float32)
    canvas[present] = EFFECTS[effect.name](canvas[present], strength[present], phase[present])


def _wave(period: float, along: Floats, phase: Floats) -> Floats:
    return np.sin(2 * np.pi / period * along + phase)


def _blend(images: Floats, strength: Floats, towards: Floats) -> Floats:
    return images + strength * (towards - images)


# Functions of images, and of one strength and one phase per image, that return new images.
EFFECTS: dict[str, Callable[[Floats, Floats, Floats], Floats]] = {
    "horizontal_stripes": lambda images, s, phase: images + s * _wave(5, _Y, phase),
    "vertical_stripes": lambda images, s, phase: images + s * _wave(4, _X, phase),
    "diagonal_stripes": lambda images, s, phase: images + s * _wave(7, _X + _Y, phase),
    "checkerboard": lambda images, s, phase: images + s * np.sign(_wave(6, _X, phase) * _wave(6, _Y, phase)),
    "bright_top": lambda images, s, _: images + s * (1 - 2 * _Y / SIDE),
    "bright_left": lambda images, s, _: images + s * (1 - 2 * _X / SIDE),
    "frame": lambda images, s, _: np.where(_TO_EDGE < 2, images * (1 - s), images),
    "vignette": lambda images, s, _: images - s * _TO_CENTRE**2,
    "red_tint": lambda images, s, _: _blend(images, s, _RED),
    "blue_tint": lambda images, s, _: _blend(images, s, _BLUE),
    "dark": lambda images, s, _: images * (1 - s),
    "pale": lambda images, s, _: images + s * (1 - images),
    "grey": lambda images, s, _: _blend(images, s, images.mean(axis=1, keepdims=True)),
}
