"""Checks of arguments: each returns the value in its proper type, or raises InvalidOption."""

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
    return _integer(name, value, "a positive integer", low=1)


def natural_number(name: str, value: Any) -> int:
    """Return ``value`` as an int of at least 0."""
    return _integer(name, value, "0 or a positive integer", low=0)


def positive_integer_or_auto(name: str, value: Any) -> int | str:
    """Return ``value`` as a positive int, or ``"auto"``."""
    is_auto = isinstance(value, str) and value == "auto"
    return "auto" if is_auto else _integer(name, value, "a positive integer or 'auto'", low=1)


def real(
    name: str,
    value: Any,
    *,
    low: float = -math.inf,
    high: float = math.inf,
    open_low: bool = False,
    open_high: bool = False,
) -> float:
    """Return ``value`` as a finite float in [low, high], where each end can be open."""
    number = _as_float(value)
    if not math.isfinite(number):
        raise InvalidOption(f"{name} must be a finite number, found {value!r}")
    if number > high or number < low or (open_low and number == low) or (open_high and number == high):
        needed = f"lie in {'(' if open_low else '['}{low:g}, {high:g}{')' if open_high else ']'}"
        if high == math.inf:
            needed = f"be a finite number {'above' if open_low else 'of at least'} {low:g}"
        raise InvalidOption(f"{name} must {needed}, found {value!r}")
    return number


def positive_or_auto(name: str, value: Any) -> float | str:
    """Return ``value`` as a finite float above 0, or ``"auto"``."""
    if isinstance(value, str) and value == "auto":
        return value
    number = _as_float(value)
    if not 0.0 < number < math.inf:
        raise InvalidOption(f"{name} must be a finite number above 0, or 'auto', found {value!r}")
    return number


def reals(name: str, values: Any, *, low: float = -math.inf, open_low: bool = False) -> list[float]:
    """Return a sequence of numbers as floats, each checked by ``real``."""
    found = values.tolist() if isinstance(values, Tensor) else values
    if not isinstance(found, Iterable) or isinstance(found, str | bytes | Mapping):
        raise InvalidOption(f"{name} must be a sequence of numbers, found {values!r}")
    return [real(f"{name}[{s}]", value, low=low, open_low=open_low) for s, value in enumerate(found)]


def share(name: str, value: Any) -> float | None:
    """Return 0.05 for "5%", None for what is not a text."""
    if not isinstance(value, str):
        return None
    text = value.strip()
    try:
        found = float(text[:-1]) / 100.0 if text.endswith("%") else -1.0
    except ValueError:
        found = -1.0
    if not 0.0 <= found < math.inf:
        raise InvalidOption(f"{name} must be a number, or a share such as '5%', found {value!r}")
    return found


def flag(name: str, value: Any) -> bool:
    """Return ``value`` if it is True or False."""
    if not isinstance(value, bool):
        raise InvalidOption(f"{name} must be True or False, found {value!r}")
    return value


def choice(name: str, value: Any, allowed: tuple[str, ...]) -> str:
    """Return ``value`` if it is one of the allowed strings."""
    if not isinstance(value, str) or value not in allowed:
        raise InvalidOption(f"{name} must be one of {', '.join(map(repr, allowed))}, found {value!r}")
    return value


def seed_number(value: Any) -> int:
    """Return a seed for ``torch.Generator``."""
    return _integer("seed", value, "an integer from 0 to 2^64 - 1", low=0, high=(1 << 64) - 1)


@dataclass(frozen=True)
class Bounded:
    """A schedule whose values are checked against a range when they are used."""

    name: str
    value: Schedule
    low: float
    high: float

    def __post_init__(self) -> None:
        if not callable(self.value):
            real(self.name, self.value, low=self.low, high=self.high)

    def __call__(self, t: int) -> float:
        """Return the value at iteration t."""
        if not callable(self.value):
            return float(self.value)
        return real(f"{self.name}({t})", self.value(t), low=self.low, high=self.high)


def _integer(name: str, value: Any, needed: str, *, low: int, high: float = math.inf) -> int:
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or not low <= int(value) <= high:
        raise InvalidOption(f"{name} must be {needed}, found {value!r}")
    return int(value)


def _as_float(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        return math.nan
    try:
        return float(value)
    except OverflowError:  # an integer beyond 1e308
        return math.inf
