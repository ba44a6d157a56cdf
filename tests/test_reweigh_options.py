"""Values of ``reweigh=`` and ``gramian=`` that cannot work are refused with what would."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from stimulus_moo import Filtered, Full, InvalidOption, MiniBatch, MultiGradient, Page, Recursive, Storm, Tracking
from tests.harness import data, two_heads, two_losses

ANCHOR = [data(6)]
ONE_OF = "reweigh must be 1, 'anchor' or 'auto' with"
NUMBER = "reweigh must be a positive integer"

REFUSED: list[tuple[Any, dict[str, Any], list[str]]] = [
    (lambda: Recursive(ANCHOR, 3), {"reweigh": 5}, [ONE_OF, "Recursive", "complete at anchors only", "found 5"]),
    (lambda: Page(ANCHOR, 0.5), {"reweigh": 2}, [ONE_OF, "Page", "found 2"]),
    (MiniBatch, {"reweigh": "anchor"}, [NUMBER, "or 'auto'", "MiniBatch, which has no anchors", "found 'anchor'"]),
    (lambda: Storm(0.1), {"reweigh": "anchor"}, [NUMBER, "Storm, which has no anchors", "found 'anchor'"]),
    (lambda: Tracking(0.1), {"reweigh": "anchor"}, [NUMBER, "Tracking", "found 'anchor'"]),
    (MiniBatch, {"reweigh": 0}, [NUMBER, "found 0"]),
    (MiniBatch, {"reweigh": -3}, [NUMBER, "found -3"]),
    (MiniBatch, {"reweigh": True}, [NUMBER, "found True"]),
    (MiniBatch, {"reweigh": 2.5}, [NUMBER, "found 2.5"]),
    (MiniBatch, {"reweigh": None}, [NUMBER, "found None"]),
    (MiniBatch, {"reweigh": "often"}, [NUMBER, "'anchor' or 'auto'", "found 'often'"]),
    (MiniBatch, {"reweigh": [2]}, [NUMBER, "found [2]"]),
    (
        lambda: Recursive(ANCHOR, 3),
        {"gramian": "sketch"},
        ["gramian must be 'exact' with reweigh=1 and Recursive", "keeps all rows", "found 'sketch'", "another reweigh"],
    ),
    (lambda: Storm(0.1), {"gramian": "sketch"}, ["gramian must be 'exact' with reweigh=1 and Storm", "found 'sketch'"]),
    (MiniBatch, {"gramian": "nope"}, ["gramian must be one of 'exact', 'sketch'", "found 'nope'"]),
    (MiniBatch, {"gramian": None}, ["gramian must be one of 'exact', 'sketch'", "found None"]),
]


@pytest.mark.parametrize(("build", "options", "said"), REFUSED)
def test_options_that_cannot_work_are_refused(build: Any, options: dict[str, Any], said: list[str]) -> None:
    with pytest.raises(InvalidOption) as caught:
        MultiGradient(two_heads(), two_losses, build(), **options)
    for words in said:
        assert words in str(caught.value)


@pytest.mark.parametrize(
    ("build", "options", "solves"),
    [
        (MiniBatch, {"reweigh": np.int64(2)}, [True, False, True, False]),
        (MiniBatch, {"gramian": "sketch"}, [True] * 4),
        (lambda: Full(ANCHOR), {"reweigh": "anchor"}, [True] * 4),
        (lambda: Full(ANCHOR), {"reweigh": 2, "gramian": "sketch"}, [True, False, True, False]),
        (lambda: Recursive(ANCHOR, 2), {"reweigh": "anchor", "gramian": "sketch"}, [True, False, True, False]),
        (lambda: Page(ANCHOR, 0.0), {"reweigh": "anchor"}, [True, False, False, False]),
        (lambda: Filtered(), {"reweigh": 3}, [True, False, False, True]),
        (lambda: Tracking(0.1), {"reweigh": 1}, [True] * 4),
    ],
)
def test_options_that_work_solve_when_they_say(build: Any, options: dict[str, Any], solves: list[bool]) -> None:
    mg = MultiGradient(two_heads(), two_losses, build(), **options)
    assert [mg.backward(data(6)).reweighed for _ in range(4)] == solves
