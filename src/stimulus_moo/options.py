"""Checks of arguments: each returns the value in its proper type or raises InvalidOption with the value found."""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from stimulus_moo.errors import InvalidOption

#: A number, or a function of the iteration t = 0, 1, ...
Schedule = float | Callable[[int], float]


def positive_integer(name: str, value: Any) -> int:
    """Return ``value`` as a positive int."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < 1:
        raise InvalidOption(f"{name} must be a positive integer, found {value!r}")
    return int(value)


def natural_number(name: str, value: Any) -> int:
    """Return ``value`` as an int of at least 0."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < 0:
        raise InvalidOption(f"{name} must be 0 or a positive integer, found {value!r}")
    return int(value)


def positive_integer_or_auto(name: str, value: Any) -> int | str:
    """Return ``value`` as a positive int, or ``"auto"``."""
    if isinstance(value, str) and value == "auto":
        return value
    try:
        return positive_integer(name, value)
    except InvalidOption:
        raise InvalidOption(f"{name} must be a positive integer or 'auto', found {value!r}") from None


def real(
    name: str,
    value: Any,
    *,
    low: float = -math.inf,
    high: float = math.inf,
    open_low: bool = False,
    open_high: bool = False,
) -> float:
    """Return ``value`` as a finite float within [low, high], without its ends where they are open."""
    number = _as_float(value)
    if not math.isfinite(number):
        raise InvalidOption(f"{name} must be a finite number, found {value!r}")
    if number > high or number < low or (open_low and number == low) or (open_high and number == high):
        raise InvalidOption(f"{name} must {_range(low, high, open_low, open_high)}, found {value!r}")
    return number


def positive_or_auto(name: str, value: Any) -> float | str:
    """Return ``value`` as a finite float above 0, or ``"auto"``."""
    if isinstance(value, str) and value == "auto":
        return value
    try:
        return real(name, value, low=0.0, open_low=True)
    except InvalidOption:
        raise InvalidOption(f"{name} must be a finite number above 0, or 'auto', found {value!r}") from None


def reals(name: str, values: Any, *, low: float = -math.inf, open_low: bool = False) -> list[float]:
    """Return a sequence of numbers as finite floats, each checked as by ``real``."""
    found = values.tolist() if isinstance(values, Tensor) else values
    if not isinstance(found, Iterable) or isinstance(found, str | bytes | Mapping):
        raise InvalidOption(f"{name} must be a sequence of numbers, found {values!r}")
    return [real(f"{name}[{s}]", value, low=low, open_low=open_low) for s, value in enumerate(found)]


def flag(name: str, value: Any) -> bool:
    """Return ``value`` if it is True or False."""
    if not isinstance(value, bool):
        raise InvalidOption(f"{name} must be True or False, found {value!r}")
    return value


def choice(name: str, value: Any, allowed: tuple[str, ...]) -> str:
    """Return ``value`` if it is one of the allowed words."""
    if not isinstance(value, str) or value not in allowed:
        raise InvalidOption(f"{name} must be one of {', '.join(map(repr, allowed))}, found {value!r}")
    return value


def optional_function(name: str, value: Any) -> None:
    """Refuse what is neither None nor can be called."""
    if value is not None and not callable(value):
        raise InvalidOption(f"{name} must be a function or None, found {value!r}")


def seed_number(value: Any) -> int:
    """Return a seed that ``torch.Generator`` takes."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or int(value) not in range(1 << 64):
        raise InvalidOption(f"seed must be an integer from 0 to 2^64 - 1, found {value!r}")
    return int(value)


@dataclass(frozen=True)
class Bounded:
    """A schedule whose every value is checked against its range when it is used."""

    name: str
    value: Schedule
    low: float
    high: float

    def __post_init__(self) -> None:
        if not callable(self.value):
            real(self.name, self.value, low=self.low, high=self.high)

    def __call__(self, t: int) -> float:
        """Return the value at t."""
        if not callable(self.value):
            return float(self.value)
        return real(f"{self.name}({t})", self.value(t), low=self.low, high=self.high)


def _range(low: float, high: float, open_low: bool, open_high: bool) -> str:
    if high == math.inf:
        return f"be a finite number {'above' if open_low else 'of at least'} {low:g}"
    return f"lie in {'(' if open_low else '['}{low:g}, {high:g}{')' if open_high else ']'}"


def _as_float(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        return math.nan
    try:
        return float(value)
    except OverflowError:  # an integer beyond 1e308
        return math.inf
