"""Where samples come from."""

from __future__ import annotations

import gc
import multiprocessing
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, TensorDataset, random_split

from stimulus_moo import InvalidBatch, InvalidOption, fit
from stimulus_moo.data.sources import Columns, Samples, Selected, Source, Stream, as_source

X, Y = torch.arange(12.0).reshape(6, 2), torch.arange(6)
INDICES = torch.tensor([4, 0, 4])


class Squares(Dataset[tuple[Tensor, int]]):
    """A map-style data set that counts what is fetched."""

    def __init__(self, size: int = 6) -> None:
        self.size = size
        self.fetched: list[int] = []

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, i: int) -> tuple[Tensor, int]:
        self.fetched.append(i)
        return torch.tensor([float(i * i)]), i


class Numbers(IterableDataset[Tensor]):
    """Endless and started again by every ``iter``."""

    def __iter__(self) -> Iterator[Tensor]:
        return (torch.tensor(float(i)) for i in count())


@dataclass
class Table:
    x: Tensor
    y: Tensor


@pytest.mark.parametrize(
    ("dataset", "kind"),
    [
        (X, Columns),
        ((X, Y), Columns),
        ({"x": X, "y": Y}, Columns),
        (Table(X, Y), Columns),
        (TensorDataset(X, Y), Columns),
        (Subset(TensorDataset(X, Y), [1, 2]), Selected),
        (Squares(), Samples),
        ([(x, y) for x, y in zip(X, Y, strict=True)], Samples),
        (Numbers(), Stream),
        (iter(X), Stream),
        ((x for x in X), Stream),
    ],
)
def test_every_data_set_finds_its_source(dataset: Any, kind: type) -> None:
    source = as_source(dataset)
    assert type(source) is kind
    assert as_source(source) is source


@pytest.mark.parametrize(
    "dataset", [(X, Y), TensorDataset(X, Y), [(x, y) for x, y in zip(X, Y, strict=True)]], ids=["tuple", "set", "list"]
)
def test_take_and_span_give_batches(dataset: Any) -> None:
    source = as_source(dataset)
    assert isinstance(source, Source)
    assert len(source) == 6
    x, y = source.take(INDICES)
    assert torch.equal(x, X[INDICES])
    assert y.tolist() == [4, 0, 4]
    x, y = source.span(2, 5)
    assert torch.equal(x, X[2:5])
    assert y.tolist() == [2, 3, 4]


def test_columns_in_memory_keep_their_nest_and_lists_and_arrays_follow_the_index() -> None:
    columns = {"x": X, "names": list("abcdef"), "array": np.arange(6), "unit": "metre"}
    batch = Columns(columns).take(INDICES)
    assert torch.equal(batch["x"], X[INDICES])
    assert batch["names"] == ["e", "a", "e"]
    assert batch["array"].tolist() == [4, 0, 4]
    assert batch["unit"] == "metre"
    assert Columns(columns).span(1, 3)["names"] == ["b", "c"]


def test_a_span_of_columns_is_a_view() -> None:
    x, _ = Columns((X, Y)).span(2, 5)
    assert x.data_ptr() == X[2:].data_ptr()


def test_random_split_of_tensors_stays_an_index() -> None:
    part, _ = random_split(TensorDataset(X, Y), [4, 2], generator=torch.Generator().manual_seed(0))
    source = as_source(part)
    assert isinstance(source, Selected)
    assert isinstance(source.source, Columns)
    x, y = source.take(torch.tensor([3, 0]))
    assert y.tolist() == [part.indices[3], part.indices[0]]
    assert torch.equal(x, X[y])


class Doubled(Subset[Any]):
    def __getitem__(self, i: Any) -> Any:
        x, y = super().__getitem__(i)
        return 2 * x, y

    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self[i] for i in indices]


class Shifted(TensorDataset):
    def __getitem__(self, i: Any) -> tuple[Tensor, ...]:
        x, y = super().__getitem__(i)
        return x + 100, y


def test_subclasses_that_change_their_samples_are_asked_for_them() -> None:
    x, _ = as_source(Doubled(TensorDataset(X, Y), [1, 2])).take(torch.tensor([1]))  # type: ignore[arg-type]
    assert torch.equal(x, 2 * X[2:3])
    x, _ = as_source(Shifted(X, Y)).take(torch.tensor([1]))  # type: ignore[arg-type]
    assert torch.equal(x, X[1:2] + 100)


def test_a_collate_function_is_used_for_map_style_data_sets_also_of_tensors() -> None:
    def collate(samples: list[Any]) -> int:
        return len(samples)

    assert as_source(Squares(), collate).take(INDICES) == 3  # type: ignore[arg-type]
    assert as_source(TensorDataset(X, Y), collate).take(INDICES) == 3  # type: ignore[arg-type]
    assert as_source(Numbers(), collate).read(4) == 4  # type: ignore[arg-type]


def test_many_samples_are_fetched_at_once_where_the_data_set_can() -> None:
    class Batched(Squares):
        def __getitems__(self, indices: list[int]) -> list[tuple[Tensor, int]]:
            self.fetched.append(-len(indices))
            return [(torch.zeros(1), i) for i in indices]

    dataset = Batched()
    _, y = Samples(dataset, torch.utils.data.default_collate).take(INDICES)
    assert y.tolist() == [4, 0, 4]
    assert dataset.fetched == [-3]


@dataclass
class Annotated(Dataset[Tensor]):
    """A map-style data set that happens to be a dataclass."""

    scale: float

    def __len__(self) -> int:
        return 3

    def __getitem__(self, i: int) -> Tensor:
        return torch.tensor(self.scale * i)


def test_a_map_style_data_set_that_is_a_dataclass_is_not_a_table() -> None:
    source = as_source(Annotated(2.0))
    assert isinstance(source, Samples)
    assert source.take(torch.tensor([2])).tolist() == [4.0]


@pytest.mark.parametrize(
    ("dataset", "message"),
    [
        (3, "an iterable of samples, found int"),
        (None, "an iterable of samples, found NoneType"),
        (lambda: None, "an iterable of samples, found function"),
        (DataLoader(TensorDataset(X)), r"found DataLoader; pass its .dataset"),
        (torch.zeros(0, 3), "the data set is empty"),
        ([], "the data set is empty"),
        ((X, torch.zeros(5)), r"the first has 6 samples, another has shape \[5\]"),
        ((X, torch.tensor(1.0)), r"the first has 6 samples, another has shape \[\]"),
        ((np.array(["a", "b"]), np.array(["c", "d"])), "at least one tensor"),
    ],
)
def test_data_sets_that_cannot_be_used(dataset: Any, message: str) -> None:
    with pytest.raises(InvalidBatch, match=message):
        as_source(dataset)


# Streams


def stream(samples: Any = None) -> Stream:
    source = as_source(Numbers() if samples is None else samples)
    assert isinstance(source, Stream)
    return source


def test_a_stream_is_read_from_front_to_back() -> None:
    source = stream()
    assert source.read(3).tolist() == [0, 1, 2]
    assert source.read(2).tolist() == [3, 4]
    assert source.consumed == 5


def test_a_stream_resumes_in_a_fresh_object_and_goes_back_when_asked() -> None:
    source = stream()
    source.read(5)
    state = source.consumed
    source.read(7)
    fresh = stream()
    fresh.consumed = state
    assert fresh.read(2).tolist() == [5, 6]
    source.consumed = state
    assert source.read(2).tolist() == [5, 6]


def test_an_iterator_goes_on_where_it_stands() -> None:
    numbers = (torch.tensor(float(i)) for i in count())
    source = stream(numbers)
    source.read(3)
    source.consumed = 0  # a step taken back: what was read is gone
    assert source.read(2).tolist() == [3, 4]
    resumed = stream(numbers)
    resumed.consumed = 100  # a resumed run that was handed the rest of the stream
    assert resumed.read(1).tolist() == [5]
    assert resumed.consumed == 101


class Failing:
    """Raises once at the third sample, and is otherwise endless."""

    def __init__(self) -> None:
        self.broken = True

    def __iter__(self) -> Iterator[Tensor]:
        for i in count():
            if i == 2 and self.broken:
                self.broken = False
                raise OSError("disk")
            yield torch.tensor(float(i))


def test_no_sample_is_lost_when_a_stream_raises() -> None:
    source = stream(Failing())
    assert source.read(1).tolist() == [0]
    with pytest.raises(OSError, match="disk"):
        source.read(3)
    assert source.consumed == 1
    assert source.read(3).tolist() == [1, 2, 3]


def test_no_sample_is_lost_when_collating_raises() -> None:
    calls = []

    def collate(samples: list[Tensor]) -> Tensor:
        calls.append(len(samples))
        if len(calls) == 2:
            raise ValueError("collate")
        return torch.stack(samples)

    source = Stream(Numbers(), collate)
    source.read(2)
    before = source.consumed
    with pytest.raises(ValueError, match="collate"):
        source.read(2)
    source.consumed = before
    assert source.read(2).tolist() == [2, 3]


def test_a_stream_that_ends_says_so() -> None:
    class Short:
        def __iter__(self) -> Iterator[Tensor]:
            return iter(torch.arange(4.0))

    source = stream(Short())
    source.read(3)
    with pytest.raises(InvalidBatch, match="the stream ended after 4 samples"):
        source.read(2)
    assert source.read(1).tolist() == [3]


class Fetched(Dataset[tuple[Tensor, int]]):
    """A map-style data set that knows which process fetched a sample."""

    def __init__(self, size: int = 23) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, i: int) -> tuple[Tensor, int]:
        info = torch.utils.data.get_worker_info()
        return torch.tensor([float(i), float(i * i)]), -1 if info is None else info.id


def test_workers_fetch_the_same_batches_in_the_same_order() -> None:
    plan = list(torch.randperm(23, generator=torch.Generator().manual_seed(0)).split(5))
    alone, helped = as_source(Fetched()), as_source(Fetched(), workers=2)
    assert isinstance(alone, Source)
    assert isinstance(helped, Source)
    random = torch.get_rng_state()
    passes = [lambda source: source.follow(plan), lambda source: source.spans(5)]
    for batches in passes * 2:
        mine, theirs = list(batches(alone)), list(batches(helped))
        assert len(mine) == len(theirs) == 5
        assert all(torch.equal(a[0], b[0]) for a, b in zip(mine, theirs, strict=True))
        assert {int(i) for batch in mine for i in batch[1]} == {-1}
        assert {int(i) for batch in theirs for i in batch[1]} == {0, 1}
    assert torch.equal(torch.get_rng_state(), random)


def test_a_run_with_workers_is_the_run_without() -> None:
    def losses(model: torch.nn.Module, batch: Any) -> Tensor:
        return (model(batch[0] / 100) - 1.0).square().mean(0)

    ends = []
    for workers in (0, 2):
        torch.manual_seed(0)
        model = torch.nn.Linear(2, 2)
        fit(model, losses, Fetched(), method="stimulus-m", lr=0.1, batch_size=5, period=4, steps=11, workers=workers)
        ends.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    assert torch.equal(*ends)


def test_workers_end_with_the_run() -> None:
    """Also where a run fails in the middle of an anchor. Those left to the garbage collector take seconds to end."""

    def fails(model: torch.nn.Module, batch: Any) -> Tensor:
        raise KeyError("planned")

    def losses(model: torch.nn.Module, batch: Any) -> Tensor:
        return model(batch[0]).square().mean(0)

    before = len(multiprocessing.active_children())
    gc.disable()
    try:
        for _ in range(3):
            fit(torch.nn.Linear(2, 2), losses, Fetched(), method="stimulus", lr=0.1, batch_size=5, steps=3, workers=2)
            assert len(multiprocessing.active_children()) == before
        with pytest.raises(KeyError):
            fit(torch.nn.Linear(2, 2), fails, Fetched(), method="stimulus", lr=0.1, batch_size=5, steps=3, workers=2)
        assert len(multiprocessing.active_children()) == before
    finally:
        gc.enable()


@pytest.mark.parametrize("workers", [-1, 1.5, True, "2"])
def test_workers_that_cannot_be(workers: Any) -> None:
    with pytest.raises(InvalidOption, match="workers must be 0 or a positive integer, found"):
        fit(torch.nn.Linear(2, 2), lambda m, b: m(b[0]).mean(0), Fetched(), lr=0.1, steps=1, workers=workers)
