"""Names of the losses, where ``losses`` returns a dict: their order, and their place in messages."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from stimulus_moo.errors import InvalidLosses, NonFiniteError, StimulusError

_NUMBERED = re.compile(r"(?:the loss of )?objective (\d+)")


def unpacked(returned: Any, names: Sequence[str] | None) -> tuple[Any, tuple[str, ...]]:
    """Return the losses in the order of ``names``, and their names; ``names`` is None before the first step.

    Raises:
        InvalidLosses: they have other names than before, or a name is not a string.

    >>> unpacked({"b": 2, "a": 1}, ("a", "b"))
    ([1, 2], ('a', 'b'))
    >>> unpacked([1, 2], None)
    ([1, 2], ())
    """
    found = tuple(returned) if isinstance(returned, Mapping) else ()
    if not all(isinstance(name, str) for name in found):
        raise InvalidLosses(f"names of losses must be strings, found {list(found)}")
    if names is not None and sorted(found) != sorted(names):
        raise InvalidLosses(f"losses returned {_listed(names)} before and {_listed(found)} now")
    order = found if names is None else tuple(names)
    return ([returned[name] for name in order], order) if found else (returned, ())


def label(objective: int, names: Sequence[str]) -> str:
    """Return how messages call a loss.

    >>> label(1, ("accuracy", "fairness")), label(1, ())
    ("loss 'fairness'", 'loss 1')
    """
    return f"loss {names[objective]!r}" if names else f"loss {objective}"


def name_losses(error: BaseException, names: Sequence[str]) -> None:
    """Put the names of losses in place of their numbers into the message of an error of this library."""
    if not names or not isinstance(error, StimulusError) or not error.args or not isinstance(error.args[0], str):
        return
    message = _NUMBERED.sub(lambda found: label(int(found[1]), names), error.args[0])
    error.args = (message, *error.args[1:])
    if isinstance(error, NonFiniteError):
        error.name = names[error.objective]


def _listed(names: Sequence[str]) -> str:
    return f"a dict with {', '.join(names)}" if names else "losses without names"
