"""Colour, dash and marker of each method, the same in every figure and legible on light, on dark and in grey.

The STIMULUS family has warm colours and thick lines, other multi-objective methods cool colours, scalarisations grey
and brown.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from stimulus_moo.lab.methods import LAB_METHODS

#: Background colours of the light and the dark page.
BACKGROUNDS = ("#ffffff", "#14181e")

#: The STIMULUS family.
FAMILY = ("stimulus", "stimulus-m", "stimulus+", "stimulus-m+")


@dataclass(frozen=True)
class Style:
    """Style of a line: colour on a light and on a dark page, plotly's names of dash and marker, width in pixels."""

    light: str
    dark: str
    dash: str
    symbol: str
    width: float


STYLES: Mapping[str, Style] = MappingProxyType(
    {
        "mgd": Style("#1b1f24", "#e6e9ee", "solid", "circle", 1.8),
        "smgd": Style("#0068a8", "#5aa9e6", "dash", "square", 1.8),
        "moco": Style("#00795a", "#2fc79b", "dashdot", "diamond", 1.8),
        "moco+": Style("#3a9278", "#8be0c4", "dot", "diamond-open", 1.8),
        "cr-mogm": Style("#2b87b8", "#9ad4f5", "longdash", "square-open", 1.8),
        "stimulus": Style("#d04a00", "#ff8a4c", "solid", "triangle-up", 3.0),
        "stimulus-m": Style("#9b1030", "#ff6b81", "solid", "star", 3.0),
        "stimulus+": Style("#b07a00", "#f5c242", "dash", "triangle-up-open", 3.0),
        "stimulus-m+": Style("#c43a8c", "#ff9ad5", "dash", "star-open", 3.0),
        "auto": Style("#1f4fd8", "#7da6ff", "solid", "diamond-wide", 2.6),
        "page-moo": Style("#6638b0", "#b794f6", "solid", "pentagon", 2.2),
        "page-moo-m": Style("#8f66d0", "#d6c2ff", "dash", "pentagon-open", 2.2),
        "filtered": Style("#0b7f8a", "#45d0de", "solid", "hexagon", 2.2),
        "filtered-m": Style("#3f9aa3", "#8fe6ee", "longdashdot", "hexagon-open", 2.2),
        "vr-scalarisation": Style("#4c5a68", "#a9b7c6", "longdash", "x", 1.8),
        "scalarisation": Style("#6e7781", "#98a2ae", "dot", "cross", 2.6),
        "scalarisation-adam": Style("#84622f", "#cfae7c", "dashdot", "cross-open", 2.6),
        "upgrad-adam": Style("#5f7d00", "#b5d334", "longdash", "bowtie", 2.2),
    }
)

#: Styles of methods without one of their own, in the order of their appearance.
_OTHERS = (
    Style("#0f766e", "#4fd1c5", "longdashdot", "hexagon", 1.8),
    Style("#4d5bc9", "#a3b1ff", "longdashdot", "hexagram", 1.8),
    Style("#7a5c00", "#d9c36a", "longdashdot", "hourglass", 1.8),
)
_DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
#: Colours of the values of a setting, from small to large, for several variants of one method.
_STEPS = (
    ("#2b87b8", "#9ad4f5"),
    ("#00795a", "#2fc79b"),
    ("#b07a00", "#f5c242"),
    ("#d04a00", "#ff8a4c"),
    ("#9b1030", "#ff6b81"),
)


def style_named(title: str) -> Style | None:
    """Return the style of a method by its title or name, or None for an unknown method."""
    names = {method.title: name for name, method in LAB_METHODS.items()}
    return STYLES.get(names.get(title, title))


def styles_for(keys: Iterable[tuple[str, str]]) -> list[Style]:
    """Return a style for each (method, variant); the variant is empty or a value of a setting.

    A method without variants has its own colour. With variants, the colour shows the variant and the dash the method.
    """
    pairs = list(keys)
    methods = list(dict.fromkeys(method for method, _ in pairs))
    variants = list(dict.fromkeys(variant for _, variant in pairs if variant))
    unknown = [method for method in methods if method not in STYLES]
    styles = []
    for method, variant in pairs:
        style = STYLES.get(method) or _OTHERS[unknown.index(method) % len(_OTHERS)]
        if variant:
            light, dark = _STEPS[variants.index(variant) % len(_STEPS)]
            dash = _DASHES[methods.index(method) % len(_DASHES)]
            style = replace(style, light=light, dark=dark, dash=dash, width=2.4)
        styles.append(style)
    return styles
