"""The 40 attributes of the synthetic images, as data: shape or effect, frequency and contrast."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Effect:
    """An attribute of the whole image.

    Attributes:
        name: the attribute and the effect it has, a key of ``attribute_effects.EFFECTS`` (grain is noise).
        share: fraction of images with the attribute.
        contrast: strength of the effect, in brightness from 0 to 1.
    """

    name: str
    share: float
    contrast: float


@dataclass(frozen=True)
class Mark:
    """An attribute that is a coloured shape in one of 4 x 4 cells of 8 x 8 pixels.

    Attributes:
        colour: a key of ``COLOURS``.
        shape: a key of ``attribute_marks.SHAPES``.
        cell: row and column.
        share: fraction of images with the attribute.
        contrast: opacity, from 0 to 1.
        radius: half the size in pixels.
        occluded: fraction of images in which half the cell is covered, with or without the shape.
        decoy: shape of the same colour shown by half of the images without the attribute; empty for none.
    """

    colour: str
    shape: str
    cell: tuple[int, int]
    share: float
    contrast: float
    radius: float = 3.0
    occluded: float = 0.0
    decoy: str = ""

    @property
    def name(self) -> str:
        """The attribute's name."""
        return f"{self.colour}_{self.shape}"


COLOURS = {
    "red": (0.90, 0.15, 0.15),
    "green": (0.10, 0.75, 0.20),
    "blue": (0.15, 0.25, 0.95),
    "yellow": (0.95, 0.90, 0.10),
    "cyan": (0.10, 0.85, 0.90),
    "magenta": (0.90, 0.15, 0.85),
    "white": (1.00, 1.00, 1.00),
    "black": (0.00, 0.00, 0.00),
}

TEXTURES = (
    Effect("horizontal_stripes", 0.30, 0.10),
    Effect("vertical_stripes", 0.20, 0.10),
    Effect("diagonal_stripes", 0.12, 0.10),
    Effect("checkerboard", 0.25, 0.09),
    Effect("bright_top", 0.45, 0.14),
    Effect("bright_left", 0.35, 0.10),
    Effect("frame", 0.40, 0.35),
    Effect("vignette", 0.15, 0.15),
)
TINTS = (
    Effect("red_tint", 0.30, 0.16),
    Effect("blue_tint", 0.10, 0.16),
    Effect("dark", 0.25, 0.30),
    Effect("pale", 0.08, 0.22),
    Effect("grey", 0.50, 0.60),
)
GRAIN = Effect("grain", 0.20, 0.05)

MARKS = (
    Mark("red", "disc", (0, 0), 0.50, 0.90),
    Mark("green", "square", (0, 1), 0.40, 0.70),
    Mark("blue", "triangle", (0, 2), 0.30, 0.60, decoy="square"),
    Mark("yellow", "ring", (0, 3), 0.20, 0.80, occluded=0.3, decoy="disc"),
    Mark("cyan", "cross", (1, 0), 0.25, 0.60, radius=2.5),
    Mark("magenta", "plus", (1, 1), 0.15, 0.60, decoy="cross"),
    Mark("white", "diamond", (1, 2), 0.45, 0.60, decoy="square"),
    Mark("black", "dash", (1, 3), 0.35, 0.80),
    Mark("red", "bar", (2, 0), 0.10, 0.70, decoy="dash"),
    Mark("green", "slash", (2, 1), 0.40, 0.60, decoy="backslash"),
    Mark("blue", "backslash", (2, 2), 0.20, 0.80, occluded=0.4, decoy="slash"),
    Mark("yellow", "dots", (2, 3), 0.30, 0.55),
    Mark("cyan", "disc", (3, 0), 0.08, 0.55, radius=2.0),
    Mark("magenta", "square", (3, 1), 0.55, 0.50, radius=2.0),
    Mark("white", "triangle", (3, 2), 0.25, 0.50, decoy="diamond"),
    Mark("black", "ring", (3, 3), 0.15, 0.70, decoy="square"),
    Mark("yellow", "diamond", (0, 0), 0.20, 0.60, radius=2.0),
    Mark("black", "plus", (0, 2), 0.35, 0.50, radius=2.5),
    Mark("white", "dots", (1, 1), 0.40, 0.70),
    Mark("red", "ring", (1, 3), 0.12, 0.60, occluded=0.5),
    Mark("blue", "disc", (2, 0), 0.30, 0.60, radius=2.0),
    Mark("magenta", "dash", (2, 2), 0.45, 0.50),
    Mark("green", "cross", (3, 0), 0.20, 0.80, occluded=0.4, decoy="plus"),
    Mark("cyan", "bar", (3, 2), 0.25, 0.65),
    Mark("yellow", "slash", (3, 3), 0.10, 0.80, decoy="backslash"),
    Mark("red", "square", (2, 3), 0.06, 0.50, radius=1.5, occluded=0.2),
)

ATTRIBUTES: tuple[Effect | Mark, ...] = (*TEXTURES, *TINTS, GRAIN, *MARKS)
