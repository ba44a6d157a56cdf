"""Lookup of names given on the command line: methods, experiments, studies, data sets."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping

from stimulus_moo import InvalidOption, methods
from stimulus_moo.lab.methods import LAB_METHODS


def find(name: str, known: Iterable[str], kind: str) -> str:
    """Return ``name`` if it is known.

    Raises:
        InvalidOption: it is unknown; the message suggests the closest match.

    >>> try:
    ...     find("digit", ["digits", "celeba"], "experiment")
    ... except InvalidOption as error:
    ...     print(error)
    there is no experiment 'digit'; did you mean 'digits'? Known: digits, celeba
    """
    names = list(known)
    if name in names:
        return name
    near = difflib.get_close_matches(name, names, n=1)
    raise InvalidOption(
        f"there is no {kind} {name!r}; {f'did you mean {near[0]!r}? ' if near else ''}Known: {', '.join(names)}"
    )


def find_method(name: str) -> str:
    """Return the name of a method, ignoring case.

    Raises:
        InvalidOption: there is no such method; the message suggests the closest match.
    """
    key = name.strip().lower()
    return key if key in LAB_METHODS else methods.find_method(key).name


def find_methods(names: str) -> list[str]:
    """Return the methods of a comma-separated list."""
    return [find_method(name) for name in names.split(",")]


def starting_with(incomplete: str, known: Iterable[str] | Mapping[str, object]) -> list[str]:
    """Return the names that start with ``incomplete``, for shell completion."""
    return [name for name in known if name.startswith(incomplete)]
