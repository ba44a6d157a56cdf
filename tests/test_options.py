"""Arguments are checked with their name, the value found and what is allowed."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from stimulus_moo import InvalidOption, StimulusError
from stimulus_moo.options import (
    Bounded,
    choice,
    positive_integer,
    positive_integer_or_auto,
    positive_or_auto,
    real,
    seed_number,
)

ANYTHING = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=3),
    st.lists(st.integers(), max_size=2),
    st.just(10**400),
    st.just(torch.tensor(1.0)),
    st.just(np.zeros(2)),
)


@settings(deadline=None)
@given(ANYTHING)
def test_every_check_returns_its_type_or_names_argument_and_value(value: Any) -> None:
    checks = {
        positive_integer: (lambda: positive_integer("size", value), int),
        real: (lambda: real("size", value, low=0.0, high=2.0), float),
        choice: (lambda: choice("size", value, ("a", "b")), str),
    }
    for check, kind in checks.values():
        refused = None
        try:
            assert type(check()) is kind
        except StimulusError as error:
            refused = error
        if refused is not None:
            assert isinstance(refused, InvalidOption)
            assert str(refused).startswith("size must")
            assert str(refused).endswith(f"found {value!r}")


@pytest.mark.parametrize("value", [1, 7, np.int64(3), 10**400])
def test_positive_integers(value: Any) -> None:
    assert positive_integer("period", value) == value


@pytest.mark.parametrize("value", [0, -1, 1.0, True, "3", None])
def test_not_positive_integers(value: Any) -> None:
    with pytest.raises(InvalidOption, match=f"period must be a positive integer, found {value!r}"):
        positive_integer("period", value)


@pytest.mark.parametrize("value", [0, 0.5, np.float32(0.5), Fraction(1, 2), 1])
def test_reals_within_bounds(value: Any) -> None:
    assert real("beta", value, low=0.0, high=1.0) == float(value)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, "1", None, 1j, False, 10**400])
def test_not_finite_numbers(value: Any) -> None:
    with pytest.raises(InvalidOption, match="beta must be a finite number"):
        real("beta", value)


def test_bounds_and_the_open_end() -> None:
    with pytest.raises(InvalidOption, match=r"beta must lie in \[0, 1\], found 1.5"):
        real("beta", 1.5, low=0.0, high=1.0)
    with pytest.raises(InvalidOption, match=r"beta must lie in \(0, 1\), found 1"):
        real("beta", 1, low=0.0, high=1.0, open_low=True, open_high=True)
    assert real("beta", 1, low=0.0, high=1.0) == 1.0


def test_a_range_without_an_end_is_said_in_words() -> None:
    with pytest.raises(InvalidOption, match="beta must be a finite number above 0, found 0"):
        real("beta", 0, low=0.0, open_low=True)
    with pytest.raises(InvalidOption, match=r"beta must be a finite number of at least 0, found -1"):
        real("beta", -1, low=0.0)
    assert real("beta", 0, low=0.0) == 0.0


@pytest.mark.parametrize("value", [0, 2.5, "soon", None, True])
def test_what_may_be_auto_says_so(value: Any) -> None:
    with pytest.raises(InvalidOption, match=f"period must be a positive integer or 'auto', found {value!r}"):
        positive_integer_or_auto("period", value)
    assert (positive_integer_or_auto("period", "auto"), positive_integer_or_auto("period", 3)) == ("auto", 3)


@pytest.mark.parametrize("value", [0, -1, math.inf, "fast", None, True])
def test_a_rate_that_may_be_auto_says_so(value: Any) -> None:
    with pytest.raises(InvalidOption, match=f"lr must be a finite number above 0, or 'auto', found {value!r}"):
        positive_or_auto("lr", value)
    assert (positive_or_auto("lr", "auto"), positive_or_auto("lr", 1)) == ("auto", 1.0)


def test_choice_lists_what_is_allowed() -> None:
    with pytest.raises(InvalidOption, match=r"engine must be one of 'auto', 'rowwise', found 'fast'"):
        choice("engine", "fast", ("auto", "rowwise"))


def test_seeds_are_what_a_generator_takes() -> None:
    for seed in (0, np.int64(5), 2**64 - 1):
        torch.Generator().manual_seed(seed_number(seed))
        assert seed_number(seed) == seed
    for seed in (-1, 2**64, 1.0, None, True, "0"):
        with pytest.raises(InvalidOption, match=f"seed must be an integer from 0 to 2.64 - 1, found {seed!r}"):
            seed_number(seed)


def test_schedules_are_checked_at_every_call() -> None:
    beta = Bounded("beta", lambda t: 1.0 / (t - 1) if t > 1 else 0.5, 0.0, 1.0)
    assert [beta(0), beta(2), beta(3)] == [0.5, 1.0, 0.5]
    rising = Bounded("beta", lambda t: t / 2, 0.0, 1.0)
    assert rising(2) == 1.0
    with pytest.raises(InvalidOption, match=r"beta\(3\) must lie in \[0, 1\], found 1.5"):
        rising(3)
    with pytest.raises(InvalidOption, match=r"beta\(0\) must be a finite number, found 'x'"):
        Bounded("beta", lambda t: "x", 0.0, 1.0)(0)  # type: ignore[arg-type,return-value]
    with pytest.raises(InvalidOption, match=r"beta must lie in \[0, 1\], found -1"):
        Bounded("beta", -1, 0.0, 1.0)
    assert Bounded("beta", 1, 0.0, 1.0)(5) == 1.0
