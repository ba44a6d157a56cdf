"""Stored cells of a study, one per line, so that an interrupted study does not repeat finished ones."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from stimulus_moo import StimulusWarning
from stimulus_moo.lab.runs.storage import Appender, read_lines, write_lines


class Cells:
    """The ``cell`` function of a study: returns the stored value of a cell, or computes and stores it.

    Values always come from the file, even the first time, so that a resumed study sees exactly the same values.

    Args:
        path: file with one cell per line; a damaged line causes a warning, and its cell is computed again.
        finished: called with the key of each computed cell.
    """

    def __init__(self, path: Path, finished: Callable[[Mapping[str, Any]], None]) -> None:
        lines, problems = read_lines(path)
        whole = [line for line in lines if isinstance(line.get("key"), dict) and "value" in line]
        if problems or len(whole) != len(lines):
            reason = problems[0] if problems else f"{path}: a line without key and value"
            warnings.warn(f"{reason}; that cell is computed again", StimulusWarning, stacklevel=3)
            write_lines(path, map(json.dumps, whole))
        self._kept = {_name(line["key"]): line["value"] for line in whole}
        self._lines = Appender(path)
        self._finished = finished

    def __call__(self, key: Mapping[str, Any], compute: Callable[[], Any]) -> Any:
        """Return the value of a cell."""
        name = _name(key)
        if name not in self._kept:
            # not strict JSON: studies compute with NaN and infinity
            text = json.dumps({"key": dict(key), "value": compute()}, default=_as_list)
            self._lines.append(text)
            self._lines.sync()
            self._kept[name] = json.loads(text)["value"]
            self._finished(key)
        return self._kept[name]

    def close(self) -> None:
        """Close the file."""
        self._lines.close()


def _name(key: Mapping[str, Any]) -> str:
    return json.dumps(dict(key), sort_keys=True, default=_as_list)


def _as_list(value: Any) -> Any:
    """Convert a tensor, an array or one of their scalars to JSON."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"the value of a cell must consist of JSON values, found {type(value).__name__}")
