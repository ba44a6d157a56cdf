"""The one check that every model makes on its sizes."""

from __future__ import annotations

from stimulus_moo.errors import InvalidOption


def require_positive_integer(name: str, value: object) -> None:
    """Raise ``InvalidOption`` unless ``value`` is an ``int`` of at least 1."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise InvalidOption(f"{name} must be a positive integer, found {value!r}")
