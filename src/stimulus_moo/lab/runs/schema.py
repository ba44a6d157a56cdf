"""Types of the fields in the files of runs and studies; a field of another type was not written by this library.

Each function returns None, or one sentence about the first field that is wrong. Unknown fields may hold anything. A
missing field is like one that is null, except where the field identifies a run or a study.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Check = Callable[[Any], bool]

#: Numbers beyond this cannot be drawn or averaged without overflow.
LARGEST = 1e150


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= LARGEST  # not NaN


def _count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 64


def _text(value: Any) -> bool:
    return isinstance(value, str)


def _flag(value: Any) -> bool:
    return isinstance(value, bool)


def _number_or_text(value: Any) -> bool:
    return _number(value) or _text(value)


def _scalar(value: Any) -> bool:
    return value is None or isinstance(value, bool) or _number_or_text(value)


def _optional_number(value: Any) -> bool:
    return value is None or _number(value)


def _list_of(check: Check) -> Check:
    return lambda value: isinstance(value, list) and all(map(check, value))


def _dict_of(check: Check) -> Check:
    return lambda value: isinstance(value, dict) and all(map(check, value.values()))


_NUMBERS = _list_of(_optional_number)
_NEEDED = {
    _number: "a number",
    _count: "0 or a positive integer",
    _text: "a text",
    _flag: "true or false",
    _number_or_text: "a number or a text",
    _NUMBERS: "a list of numbers",
}
_FACTS: dict[str, Check] = {"data": _text, "synthetic": _flag, "tasks": _list_of(_text), "n_train": _count}
_SETTINGS: dict[str, Check] = {
    "experiment": _text,
    "method": _text,
    "seed": _count,
    **dict.fromkeys(("title", "claim", "started", "files"), _text),
    **dict.fromkeys(
        ("batch_size", "steps", "gradients", "passes", "n", "evaluate_every", "targets", "threads"), _count
    ),
    **dict.fromkeys(("momentum", "seconds", "decay", "c_gamma", "c_epsilon", "alpha", "beta", "gamma", "rho"), _number),
    **dict.fromkeys(("lr", "period", "reweigh", "epsilon", "sigma2"), _number_or_text),
    **dict.fromkeys(("lr_of", "sigma2_of"), _dict_of(_number_or_text)),
    **dict.fromkeys(("versions", "machine"), _dict_of(_scalar)),
    "guard": _flag,
    "weights": _NUMBERS,
    "resumed": _list_of(_dict_of(lambda _: True)),
    **_FACTS,
}
_RECORD: dict[str, Check] = {
    **dict.fromkeys(("step", "samples", "gradients", "passes"), _count),
    **dict.fromkeys(("losses", "weights", "full_losses"), _NUMBERS),
    **dict.fromkeys(("seconds", "sq_norm", "stationarity", "lr"), _number),
    **dict.fromkeys(("anchored", "skipped"), _flag),
}
_SUMMARY: dict[str, Check] = {
    **_RECORD,
    **_FACTS,
    **dict.fromkeys(("experiment", "method", "stopped", "error"), _text),
    **dict.fromkeys(("seed", "steps", "alone", "shortened", "taken_back"), _count),
    "skipped": lambda value: _flag(value) or _count(value),
    "lr": _number_or_text,
    "test": _dict_of(lambda value: value is None or _NUMBERS(value)),
    "diverged": _flag,
}
_STUDY: dict[str, Check] = {
    **dict.fromkeys(("name", "title", "claim", "verdict"), _text),
    "seeds": _count,
    "settings": _dict_of(lambda _: True),
    "versions": _dict_of(_scalar),
    "findings": _list_of(_text),
    "tables": _list_of(lambda table: _is(table, _TABLE) and _rectangular(table)),
    "charts": _list_of(lambda chart: _is(chart, _CHART)),
}
_TABLE: dict[str, Check] = {
    "title": _text,
    "columns": _list_of(_number_or_text),
    "rows": _list_of(_list_of(lambda cell: not isinstance(cell, list | dict) and (_scalar(cell) or cell != cell))),
}
_AXIS: dict[str, Check] = {"label": _text, "log": _flag}
_CHART: dict[str, Check] = {
    "title": _text,
    **dict.fromkeys("xy", lambda axis: _is(axis, _AXIS)),
    "series": _list_of(lambda line: _is(line, _LINE) and _even(line)),
}
_LINE: dict[str, Check] = {
    **dict.fromkeys(("name", "mode"), _text),
    **dict.fromkeys(("x", "y", "low", "high"), _NUMBERS),
}


def settings_problem(settings: Mapping[str, Any]) -> str | None:
    """Check the content of ``settings.json`` of a run."""
    return _problem(settings, _SETTINGS, ("experiment", "method", "seed"))


def record_problem(record: Mapping[str, Any], objectives: int | None = None) -> str | None:
    """Check a line of ``metrics.jsonl``; ``objectives`` is the number of losses, if it is known."""
    return _problem(record, _RECORD, ("step", "samples", "gradients", "losses")) or _lengths(record, objectives)


def summary_problem(summary: Mapping[str, Any], objectives: int | None = None) -> str | None:
    """Check the content of ``summary.json``."""
    counted = ("step", "samples", "gradients") if summary.get("step") is not None else ()
    return _problem(summary, _SUMMARY, ("diverged", *counted)) or _lengths(summary, objectives)


def study_problem(study: Mapping[str, Any]) -> str | None:
    """Check the content of ``study.json``."""
    return _problem(study, _STUDY, ("name",))


def _problem(found: Mapping[str, Any], fields: Mapping[str, Check], required: tuple[str, ...]) -> str | None:
    for name, check in fields.items():
        value = found.get(name)
        if name in required if value is None else not check(value):
            needed = _NEEDED.get(check, "of another type")
            text = repr(value)
            return f"{name} must be {needed}, found {text if len(text) <= 60 else text[:57] + '...'}"
    return None


def _is(value: Any, fields: Mapping[str, Check]) -> bool:
    return isinstance(value, dict) and _problem(value, fields, ()) is None


def _lengths(record: Mapping[str, Any], objectives: int | None) -> str | None:
    """Check that the lists of a record have one number per objective."""
    for name in ("losses", "weights", "full_losses"):
        values = record.get(name)
        if values is not None:
            objectives = len(values) if objectives is None else objectives
            if len(values) != objectives:
                return f"{name} must have {objectives} numbers, found {len(values)}"
    return None


def _rectangular(table: Mapping[str, Any]) -> bool:
    columns, rows = table.get("columns"), table.get("rows") or ()
    return all(len(row) == len(columns or ()) for row in rows if row)


def _even(line: Mapping[str, Any]) -> bool:
    """Return whether x and y have one length, and the ends of the band, if there are any, the same."""
    x, y = (len(line.get(key) or ()) for key in "xy")
    return x == y and all(len(line[key]) == x for key in ("low", "high") if line.get(key))
