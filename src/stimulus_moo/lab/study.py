"""Definition of a study: a claim checked by many small runs, with findings, tables and charts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

#: cell(key, compute) returns the stored value of a cell, or computes and stores it. This makes a study resumable.
Cell = Callable[[Mapping[str, Any], Callable[[], Any]], Any]


@dataclass(frozen=True)
class Study:
    """One study.

    Attributes:
        name: name on the command line.
        title: title in the report.
        claim: the paper's claim.
        settings: all numbers of the study, as data.
        run: function from (settings, number of seeds, cell) to findings, tables and charts, as JSON values.
        quick: changed settings for ``--quick``.
    """

    name: str
    title: str
    claim: str
    settings: Mapping[str, Any]
    run: Callable[[Mapping[str, Any], int, Cell], dict[str, Any]]
    quick: Mapping[str, Any] = field(default_factory=dict)


#: In place of True or False: the methods that a claim compares were not trained, so it can neither hold nor fail.
NOT_SHOWN = "not shown"


def verdict(found: Sequence[bool | str | None]) -> str:
    """Return the verdict on a claim from whether it holds at the paper's settings, first, and at other settings.

    None means that not every method was run at these settings, ``NOT_SHOWN`` that none of them was trained there.

    >>> verdict([False, True]), verdict([False, NOT_SHOWN]), verdict([NOT_SHOWN])
    ('holds with another step size', 'does not hold', 'not shown')
    """
    if found[0] is True:
        return "holds"
    if True in found:
        return "holds with another step size"
    if None in found:
        return "not run yet"
    return NOT_SHOWN if all(one == NOT_SHOWN for one in found) else "does not hold"
