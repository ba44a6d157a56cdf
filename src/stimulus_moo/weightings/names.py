"""Weightings by name, for ``weighting="balanced"``."""

import difflib
from collections.abc import Callable
from typing import Any

from stimulus_moo.errors import InvalidOption
from stimulus_moo.plugins import load_installed
from stimulus_moo.weightings.balanced import Balanced
from stimulus_moo.weightings.fixed import Fixed
from stimulus_moo.weightings.min_norm import MinNorm

#: By name, a function that builds a weighting. Plug-ins add to it.
WEIGHTINGS: dict[str, Callable[[], Any]] = {
    "min-norm": MinNorm,
    "normalised": lambda: MinNorm(normalise=True),
    "balanced": Balanced,
    "equal": Fixed,
}


def find_weighting(weighting: Any) -> Any:
    """Return the weighting with this name, ignoring case; anything but a string is returned as it is.

    Raises:
        InvalidOption: there is no such name; the message suggests the closest.

    >>> type(find_weighting("Balanced")).__name__
    'Balanced'
    """
    if not isinstance(weighting, str):
        return weighting
    key = weighting.lower()
    if key not in WEIGHTINGS:
        load_installed()
    if key not in WEIGHTINGS:
        close = difflib.get_close_matches(key, list(WEIGHTINGS), n=1)
        hint = f"did you mean {close[0]!r}? " if close else ""
        raise InvalidOption(f"weighting {weighting!r} is unknown; {hint}known are {', '.join(WEIGHTINGS)}")
    return WEIGHTINGS[key]()
