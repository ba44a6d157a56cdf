"""Checks of the numbers that loaders take, before any file is touched."""

from __future__ import annotations

import operator

from stimulus_moo.errors import InvalidOption


def integer_at_least(name: str, value: object, lowest: int) -> int:
    """Return ``value`` as an int that is at least ``lowest``.

    Raises:
        InvalidOption: it is not an integer, or too small.

    >>> integer_at_least("n_train", 8, 1)
    8
    """
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        number = lowest - 1
    if number < lowest:
        raise InvalidOption(f"{name} must be an integer of at least {lowest}, found {value!r}")
    return number
