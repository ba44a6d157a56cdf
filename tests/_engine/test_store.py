"""Rows, point and layout of a store, by parameter name."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from stimulus_moo import MultiGradient, StateMismatch, Storm
from tests.harness import cut, data, same, train, two_heads, two_losses

BATCHES = cut(data(24), 6)


def used() -> MultiGradient:
    mg = MultiGradient(two_heads(), two_losses, Storm(0.3))
    train(mg, BATCHES)
    return mg


def test_rows_point_and_layout_by_name() -> None:
    mg = used()
    rows, point, layout = mg.store.saved_rows(), mg.store.saved_point(), mg.store.saved_layout()
    assert [set(row) for row in rows] == [
        {"trunk.weight", "trunk.bias", "left.weight", "left.bias"},
        {"trunk.weight", "trunk.bias", "right.weight", "right.bias"},
    ]
    assert point is not None
    assert list(point) == [name for name, _ in mg.objective.model.named_parameters()]
    assert layout == {
        "trunk.weight": 3,
        "trunk.bias": 3,
        "left.weight": 1,
        "left.bias": 1,
        "right.weight": 2,
        "right.bias": 2,
    }


def test_saved_and_loaded_stores_are_the_same() -> None:
    mg = used()
    state = mg.state_dict()
    fresh = MultiGradient(two_heads(), two_losses, Storm(0.3))
    fresh.store.load(state["rows"], state["previous"], state["layout"])
    assert same(fresh.store.saved_rows(), state["rows"])
    assert same(fresh.store.saved_point(), state["previous"])
    assert fresh.store.saved_layout() == state["layout"]


def test_an_unused_store_is_empty() -> None:
    mg = MultiGradient(two_heads(), two_losses, Storm(0.3))
    assert (mg.rows(), mg.state_dict()["previous"]) == ([], None)
    assert set(mg.state_dict()["layout"].values()) == {0}


def without(values: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in values.items() if key != name}


BROKEN: dict[str, tuple[Any, str]] = {
    "rows are no list": (lambda s: {"rows": 5}, "rows must be an empty list or 2 rows, one per objective, found int"),
    "rows of another S": (lambda s: {"rows": s["rows"][:1]}, "rows must be an empty list or 2 rows, .* found 1 rows"),
    "row is no dict": (lambda s: {"rows": [3, 4]}, r"rows\[0\] must be a dict by parameter name, found int"),
    "unknown parameter": (
        lambda s: {"rows": [s["rows"][0] | {"nose": torch.zeros(1)}, s["rows"][1]]},
        r"rows\[0\] .* unknown entries \['nose'\]",
    ),
    "another shape": (
        lambda s: {"rows": [s["rows"][0], s["rows"][1] | {"trunk.bias": torch.zeros(4)}]},
        r"rows\[1\]\['trunk.bias'\] has shape \[4\], the model has \[5\]",
    ),
    "no tensor": (
        lambda s: {"rows": [s["rows"][0], s["rows"][1] | {"trunk.bias": "x"}]},
        r"rows\[1\]\['trunk.bias'\] has shape 'x', the model has \[5\]",
    ),
    "another dtype": (
        lambda s: {"rows": [s["rows"][0], s["rows"][1] | {"trunk.bias": torch.zeros(5)}]},
        r"rows\[1\]\['trunk.bias'\] is of torch.float32, this model needs torch.float64",
    ),
    "missing in the point": (
        lambda s: {"previous": without(s["previous"], "left.bias")},
        r"previous has no entry for \['left.bias'\]",
    ),
    "point of another dtype": (
        lambda s: {"previous": s["previous"] | {"left.bias": torch.zeros(1)}},
        r"previous\['left.bias'\] is of torch.float32",
    ),
    "layout without a parameter": (
        lambda s: {"layout": without(s["layout"], "left.bias")},
        "layout must name the parameters",
    ),
    "layout of more objectives": (
        lambda s: {"layout": s["layout"] | {"left.bias": 4}},
        r"layout\['left.bias'\] must be a mask of 2 objectives, found 4",
    ),
    "layout of words": (
        lambda s: {"layout": s["layout"] | {"left.bias": "1"}},
        r"layout\['left.bias'\] must be a mask",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_does_not_fit_is_refused_by_name_and_changes_nothing(name: str) -> None:
    change, message = BROKEN[name]
    mg, state = used(), used().state_dict()
    before = mg.state_dict()
    with pytest.raises(StateMismatch, match=f"MultiGradient.{message}"):
        mg.load_state_dict(state | change(state))
    assert same(mg.state_dict(), before)
