"""State that survives: copies out, checks before anything is taken in."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

import pytest
import torch
from torch import Tensor

from stimulus_moo import StateMismatch
from stimulus_moo.state import Stateful
from tests.harness import round_trip, same


class Inner(Stateful):
    state_names = ("count", "label")

    def __init__(self) -> None:
        self.count = 1
        self.label = "a"


class Outer(Stateful):
    state_names = ("inner", "rate", "vector", "maybe", "generator", "history")
    optional_names = MappingProxyType({"maybe": Tensor})

    def __init__(self, seed: int = 0) -> None:
        self.inner = Inner()
        self.rate = 0.5
        self.vector = torch.zeros(2)
        self.maybe: Tensor | None = None
        self.generator = torch.Generator().manual_seed(seed)
        self.history: list[Tensor] = []


def used() -> Outer:
    outer = Outer(seed=3)
    outer.inner.count, outer.inner.label, outer.rate = 7, "b", 1
    outer.vector += 2
    outer.maybe = torch.ones(3)
    outer.history.append(torch.ones(1))
    torch.rand(5, generator=outer.generator)
    return outer


def test_round_trip_into_a_fresh_object(tmp_path: Any) -> None:
    source, target = used(), Outer()
    target.load_state_dict(round_trip(source.state_dict(), tmp_path))
    assert same(source.state_dict(), target.state_dict())
    drawn = torch.rand(4, generator=source.generator)
    assert torch.equal(torch.rand(4, generator=target.generator), drawn)


def test_a_fresh_state_goes_into_a_used_object() -> None:
    outer = used()
    outer.load_state_dict(Outer().state_dict())
    assert outer.maybe is None
    assert same(outer.state_dict(), Outer().state_dict())


def test_states_are_copies_in_both_directions() -> None:
    outer = used()
    state = outer.state_dict()
    outer.vector += 1
    outer.history[0] += 1
    outer.inner.count = 0
    torch.rand(1, generator=outer.generator)
    assert same(state, used().state_dict())
    outer.load_state_dict(state)
    outer.vector += 1
    assert outer.maybe is not None
    outer.maybe += 1
    outer.history[0] += 1
    assert same(state, used().state_dict())


BROKEN = [
    ("a list", lambda state: [state], "the state of Outer must be a dict, found list"),
    ("kind", lambda state: state | {"kind": "Inner"}, "the state of Outer is of kind 'Inner', this object is a Outer"),
    ("missing", lambda state: {k: v for k, v in state.items() if k != "rate"}, r"missing entries \['rate'\]"),
    ("unknown", lambda state: state | {"more": 1}, r"unknown entries \['more'\]"),
    ("inner kind", lambda state: state | {"inner": {"kind": "Outer"}}, "Outer.inner is of kind 'Outer'"),
    (
        "inner count",
        lambda state: state | {"inner": state["inner"] | {"count": "1"}},
        "Outer.inner.count must be a number",
    ),
    ("rate", lambda state: state | {"rate": None}, "Outer.rate must be a number, found None"),
    ("shape", lambda state: state | {"vector": torch.zeros(3)}, r"Outer.vector must be a tensor of shape \[2\]"),
    ("dtype", lambda state: state | {"vector": torch.zeros(2).int()}, "Outer.vector must be .* torch.float32"),
    ("no tensor", lambda state: state | {"vector": 5}, "Outer.vector must be .*, found 5"),
    ("maybe", lambda state: state | {"maybe": 5}, "Outer.maybe must be a Tensor or None, found 5"),
    ("generator", lambda state: state | {"generator": torch.zeros(3)}, "Outer.generator must be a random state of"),
    ("history", lambda state: state | {"history": 3}, "Outer.history must be a list, found 3"),
]


@pytest.mark.parametrize(("name", "change", "message"), BROKEN, ids=[name for name, *_ in BROKEN])
def test_a_state_that_does_not_fit_is_refused_by_name_and_changes_nothing(name: str, change: Any, message: str) -> None:
    outer = Outer()
    before = outer.state_dict()
    with pytest.raises(StateMismatch, match=message):
        outer.load_state_dict(change(used().state_dict()))
    assert same(before, outer.state_dict())
