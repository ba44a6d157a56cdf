"""A batch is any nest of tensors: its size, its pieces."""

from __future__ import annotations

from collections import OrderedDict, UserDict, defaultdict, namedtuple
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from stimulus_moo import InvalidBatch
from stimulus_moo.data.batches import leading_size, pick, rebuild, split, tensors

Pair = namedtuple("Pair", ["x", "y"])


@dataclass
class Record:
    x: Tensor
    y: Tensor
    name: str = "record"


@dataclass(frozen=True)
class Frozen:
    x: Tensor
    y: Tensor
    total: Tensor = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "total", self.x.sum(dim=1))


def columns(size: int = 5) -> tuple[Tensor, Tensor]:
    return torch.arange(2.0 * size).reshape(size, 2), torch.arange(size)


def nests() -> dict[str, Any]:
    x, y = columns()
    return {
        "tensor": x,
        "tuple": (x, y),
        "list": [x, y],
        "dict": {"x": x, "y": y},
        "OrderedDict": OrderedDict(x=x, y=y),
        "defaultdict": defaultdict(list, x=x, y=y),
        "UserDict": UserDict(x=x, y=y),
        "MappingProxyType": MappingProxyType({"x": x, "y": y}),
        "namedtuple": Pair(x, y),
        "dataclass": Record(x, y),
        "frozen dataclass": Frozen(x, y),
        "nested": {"inputs": [x, (x + 1, {"deep": Record(x, y)})], "targets": y},
    }


@pytest.mark.parametrize("kind", nests())
def test_pieces_of_any_nest_have_its_type_and_its_rows(kind: str) -> None:
    batch = nests()[kind]
    assert leading_size(batch) == 5
    pieces = list(split(batch, 2))
    assert [leading_size(piece) for piece in pieces] == [2, 2, 1]
    assert all(type(piece) is type(batch) for piece in pieces)
    for whole, *parts in zip(tensors(batch), *map(tensors, pieces), strict=True):
        assert torch.equal(torch.cat(parts), whole)


@settings(deadline=None)
@given(size=st.integers(1, 40), pieces=st.integers(1, 50))
def test_pieces_partition_the_batch(size: int, pieces: int) -> None:
    x, y = columns(size)
    parts = list(split((x, y), pieces))
    assert len(parts) == -(-size // pieces)
    assert all(1 <= len(part[0]) <= pieces for part in parts)
    assert torch.equal(torch.cat([part[1] for part in parts]), y)


def test_a_batch_that_is_small_enough_is_passed_on_as_it_is() -> None:
    batch = columns()
    assert next(split(batch, 5)) is batch


def test_first_tensor_in_insertion_order_gives_the_size() -> None:
    x, y = torch.zeros(3, 2), torch.zeros(7)
    assert leading_size({"z": y, "a": x}) == 7
    assert leading_size((["name"], {"b": x}, y)) == 3
    assert [t.shape[0] for t in tensors({"z": y, "a": [x, "no tensor", None]})] == [7, 3]


def test_lists_and_arrays_per_sample_are_cut_and_the_rest_is_repeated() -> None:
    x, _ = columns(3)
    names, array, scalar = ["a", "b", "c"], np.array([1.0, 2.0, 3.0]), torch.tensor(0.5)
    batch = {"x": x, "names": names, "array": array, "scalar": scalar, "label": "abc", "short": [1, 2], "none": None}
    first, second = split(batch, 2)
    assert (first["names"], second["names"]) == (["a", "b"], ["c"])
    assert (first["array"].tolist(), second["array"].tolist()) == ([1.0, 2.0], [3.0])
    for piece in (first, second):
        assert piece["scalar"] is scalar
        assert (piece["label"], piece["short"], piece["none"]) == ("abc", [1, 2], None)


def test_pick_takes_indices_from_every_column() -> None:
    x, y = columns(4)
    batch = Record(x, y), ["a", "b", "c", "d"], np.arange(4)
    record, names, array = pick(batch, torch.tensor([2, 0, 2]), 4)
    assert torch.equal(record.x, x[[2, 0, 2]])
    assert record.y.tolist() == [2, 0, 2]
    assert record.name == "record"
    assert names == ["c", "a", "c"]
    assert array.tolist() == [2, 0, 2]


def test_rebuild_keeps_the_original_and_what_else_a_mapping_holds() -> None:
    original = defaultdict(list, x=torch.ones(2))
    changed = rebuild(original, lambda leaf: leaf + 1)
    assert changed["x"].tolist() == [2.0, 2.0]
    assert original["x"].tolist() == [1.0, 1.0]
    assert changed.default_factory is list


@pytest.mark.parametrize("batch", [None, 3, "text", [], {}, (["a"], {"b": 1.0}), np.zeros((3, 2))])
def test_a_batch_without_tensors_is_refused(batch: Any) -> None:
    with pytest.raises(InvalidBatch, match=rf"at least one tensor, found {type(batch).__name__}.*batch_size="):
        leading_size(batch)


def test_a_first_tensor_without_dimension_is_refused() -> None:
    with pytest.raises(InvalidBatch, match=r"leading .* dimension, found a 0-d tensor"):
        leading_size((torch.tensor(1.0), torch.zeros(3)))


def test_other_leading_dimensions_cannot_be_split() -> None:
    with pytest.raises(InvalidBatch, match=r"first tensor has 4 samples but another has shape \[3, 2\]"):
        list(split((torch.zeros(4), torch.zeros(3, 2)), 2))
