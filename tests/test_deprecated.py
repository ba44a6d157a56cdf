"""Names of 0.1 work for one more release, with one warning each."""

from __future__ import annotations

import dataclasses
import importlib
import warnings
from typing import Any

import pytest

import stimulus_moo
from stimulus_moo import METHODS
from stimulus_moo.deprecated import old_field


@pytest.fixture(autouse=True)
def afresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget the names that were found before."""
    for module in (stimulus_moo, stimulus_moo.methods):
        for name in ("AUTO_METHOD", "SmoothnessLR"):
            monkeypatch.delitem(vars(module), name, raising=False)


@pytest.mark.parametrize(
    ("module", "name", "value"),
    [
        ("stimulus_moo", "AUTO_METHOD", "filtered-m"),
        ("stimulus_moo.methods", "AUTO_METHOD", "filtered-m"),
        ("stimulus_moo", "SmoothnessLR", stimulus_moo.DoG),
    ],
)
def test_an_old_name_warns_once_and_is_what_it_was(module: str, name: str, value: Any) -> None:
    with pytest.warns(DeprecationWarning, match=f"{module}.{name} is deprecated and will be removed in 0.3") as caught:
        found = [getattr(importlib.import_module(module), name) for _ in range(2)]
    assert found == [value, value]
    assert [warning.filename for warning in caught] == [__file__]  # it points to the line that uses the name


def test_an_import_of_an_old_name_warns_the_user_once() -> None:
    lines = "from stimulus_moo import AUTO_METHOD, SmoothnessLR\nfrom stimulus_moo import AUTO_METHOD, SmoothnessLR"
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        exec(compile(lines, "the user's file", "exec"), {})
    assert [(warning.filename, warning.lineno) for warning in caught] == [("the user's file", 1)] * 2


def test_names_that_never_were_are_refused_as_usual() -> None:
    with pytest.raises(AttributeError, match="module 'stimulus_moo' has no attribute 'Autometh'"):
        stimulus_moo.Autometh  # noqa: B018
    assert not {"AUTO_METHOD", "SmoothnessLR"} & set(stimulus_moo.__all__)


def test_a_dropped_field_is_accepted_and_reads_as_its_value() -> None:
    @old_field("fast", True, "all are")
    @dataclasses.dataclass(frozen=True)
    class Row:
        name: str

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        row = Row("a", fast=False)  # type: ignore[call-arg]
        assert row.fast is True  # type: ignore[attr-defined]
    assert [(str(warning.message), warning.filename) for warning in caught] == [
        ("Row.fast is deprecated and will be removed in 0.3: all are", __file__)
    ]
    assert dataclasses.replace(row, name="b") == Row("b")


def test_rows_of_the_table_have_the_old_field() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        assert METHODS["auto"].takes_auto_lr is True  # type: ignore[attr-defined]
    assert "takes_auto_lr" not in {field.name for field in dataclasses.fields(METHODS["auto"])}
