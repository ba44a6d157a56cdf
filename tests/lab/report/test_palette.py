"""Colours: legible on both pages, told apart without colour."""

from itertools import combinations

import numpy as np
import pytest

from stimulus_moo import METHODS
from stimulus_moo.lab.methods import UPGRAD
from stimulus_moo.lab.report.palette import BACKGROUNDS, FAMILY, STYLES, styles_for

# Viénot, Brettel and Mollon (1999): linear RGB as a deuteranope sees it
DEUTERANOPE = np.array([[0.29275, 0.70725, 0.0], [0.29275, 0.70725, 0.0], [-0.02234, 0.02234, 1.0]])


def linear(colour: str) -> np.ndarray:
    value = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(value <= 0.04045, value / 12.92, ((value + 0.055) / 1.055) ** 2.4)


def contrast(a: str, b: str) -> float:
    low, high = sorted(linear(colour) @ [0.2126, 0.7152, 0.0722] + 0.05 for colour in (a, b))
    return high / low


def test_every_method_has_a_style_of_its_own() -> None:
    assert set(STYLES) <= {*METHODS, UPGRAD}
    assert len({style.light for style in STYLES.values()}) == len(STYLES)
    assert len({style.symbol for style in STYLES.values()}) == len(STYLES)


@pytest.mark.parametrize("method", [*METHODS, UPGRAD, "a method without a style"])
def test_contrast_is_enough_for_graphics_on_both_pages(method: str) -> None:
    (style,) = styles_for([(method, "")])  # WCAG 2.1, 1.4.11: at least 3
    assert contrast(style.light, BACKGROUNDS[0]) >= 3
    assert contrast(style.dark, BACKGROUNDS[1]) >= 3


def test_lines_that_a_deuteranope_confuses_differ_in_dash_or_width() -> None:
    for a, b in combinations(STYLES.values(), 2):
        for tone in ("light", "dark"):
            seen = [(DEUTERANOPE @ linear(getattr(s, tone))).clip(0, 1) ** (1 / 2.2) for s in (a, b)]
            if np.linalg.norm(seen[0] - seen[1]) < 0.1:
                assert (a.dash, a.width) != (b.dash, b.width), (a, b)


def test_the_family_is_the_thickest() -> None:
    widest = max(style.width for style in STYLES.values())
    assert all((style.width == widest) == (name in FAMILY) for name, style in STYLES.items())


def test_variants_share_the_methods_dash_and_differ_in_colour() -> None:
    styles = styles_for([("stimulus-m", "momentum 0.1"), ("stimulus-m", "momentum 0.5"), ("mgd", "")])
    assert styles[0].dash == styles[1].dash
    assert styles[0].light != styles[1].light
    assert styles[2] == STYLES["mgd"]
