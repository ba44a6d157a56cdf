"""What a study is: a claim checked by many small runs, reported as findings, tables and charts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

#: cell(key, compute): return the kept value of a cell, or compute and keep it; this is what makes a study resumable
Cell = Callable[[Mapping[str, Any], Callable[[], Any]], Any]


@dataclass(frozen=True)
class Study:
    """One study.

    Attributes:
        name: as on the command line.
        title: as in the report.
        claim: what the paper says.
        settings: every number it uses, as data.
        run: from (settings, number of seeds, cell) to a report of findings, tables and charts, as plain JSON values.
        quick: changes of the settings for ``--quick``.
    """

    name: str
    title: str
    claim: str
    settings: Mapping[str, Any]
    run: Callable[[Mapping[str, Any], int, Cell], dict[str, Any]]
    quick: Mapping[str, Any] = field(default_factory=dict)


def verdict(found: Sequence[bool | None]) -> str:
    """Return the verdict from whether a claim holds at the paper's settings and at the others tried.

    None stands for settings at which not every method was run.

    >>> verdict([False, True])
    'holds with another step size'
    """
    if found[0]:
        return "holds"
    if any(found):
        return "holds with another step size"
    return "does not hold" if None not in found else "not run yet"
