"""How many samples each of the S losses is a mean over: the user's ``counts(batch)``, checked."""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from torch import Tensor

from stimulus_moo.errors import InvalidBatch, InvalidLosses, InvalidOption

#: from a batch to S numbers: how many samples each mean loss is over
Counts = Callable[[Any], Sequence[float] | Tensor]


def check_function(counts: Any) -> None:
    """Raise InvalidOption unless ``counts`` is None or a function."""
    if counts is not None and not callable(counts):
        raise InvalidOption(f"counts must be a function from a batch to S numbers or None, found {counts!r}")


def checked_counts(found: Any, objectives: int | None) -> list[float]:
    """Return what ``counts`` has returned as floats; raise InvalidBatch unless they are finite and at least 0."""
    values = found.tolist() if hasattr(found, "tolist") else found
    if not isinstance(values, Iterable) or isinstance(values, str | bytes | Mapping):
        raise InvalidBatch(f"counts must return a sequence or a 1-D tensor of S numbers, found {found!r}")
    numbers_found = [_number(value, s) for s, value in enumerate(values)]
    if not numbers_found or (objectives is not None and len(numbers_found) != objectives):
        needed = "one number per loss" if objectives is None else f"one number per loss ({objectives})"
        raise InvalidBatch(f"counts must return {needed}, found {len(numbers_found)}")
    return numbers_found


def require_finite(values: Tensor, step: int, counts: Sequence[float]) -> None:
    """Raise InvalidLosses where a loss without a count is not finite, for models that several processes evaluate."""
    for s, (value, count) in enumerate(zip(values.tolist(), counts, strict=True)):
        if not count and not math.isfinite(value):
            raise InvalidLosses(
                f"the loss of objective {s} is {value} at step {step}, where its count is 0; the losses of a model "
                "that is split by fully_shard are differentiated by all processes together: return a finite one, "
                "such as the sum over the labels divided by max(1, count)"
            )


def _number(value: Any, objective: int) -> float:
    plain = value.item() if isinstance(value, Tensor) and value.dim() == 0 else value
    right = isinstance(plain, numbers.Real) and not isinstance(plain, bool)
    if not right or not 0.0 <= (number := float(plain)) < math.inf:
        raise InvalidBatch(
            f"counts must return finite numbers of at least 0, found {plain!r} for objective {objective}"
        )
    return number
