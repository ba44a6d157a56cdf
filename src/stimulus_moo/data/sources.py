"""Where samples come from: data in memory (indexed, never collated one by one), map-style data sets, streams."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, Subset, TensorDataset, default_collate

from stimulus_moo.data.batches import leading_size, pick, tensors
from stimulus_moo.errors import InvalidBatch

Collate = Callable[[list[Any]], Any]


class Source(ABC):
    """A data set from which batches are drawn: by index where it is finite, in order where it is a stream."""

    #: whether the data set has a length
    finite = True
    #: samples read so far; a finite data set has no position
    consumed = 0

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of samples."""

    @abstractmethod
    def take(self, indices: Tensor) -> Any:
        """Return the batch of the samples at these indices."""

    def shuffled(self, generator: torch.Generator) -> Tensor:
        """Return the indices of all samples in random order."""
        return torch.randperm(len(self), generator=generator)

    def draw(self, order: Tensor, start: int, count: int, part: slice) -> Any:
        """Return the samples ``part`` of the ``count`` samples that follow ``start`` in ``order``; None if empty."""
        return None if part.start == part.stop else self.take(order[start : start + count][part])

    def span(self, start: int, stop: int) -> Any:
        """Return the batch of the samples from ``start`` to ``stop``."""
        return self.take(torch.arange(start, stop))

    def spans(self, size: int, start: int = 0, stop: int | None = None) -> Iterator[Any]:
        """Yield the samples from ``start`` to ``stop`` in order, in batches of ``size``; the last may be smaller.

        Without ``start`` and ``stop`` these are all samples.
        """
        stop = len(self) if stop is None else stop
        for first in range(start, stop, size):
            yield self.span(first, min(first + size, stop))

    def follow(self, plan: Iterable[Tensor]) -> Iterator[Any]:
        """Yield the batches of a plan of indices."""
        return map(self.take, plan)


class Columns(Source):
    """Tensors in memory, one row per sample: a tensor, or a tuple, dict or dataclass of tensors of equal length."""

    def __init__(self, columns: Any) -> None:
        self.columns = columns
        self.size = leading_size(columns)
        for column in tensors(columns):
            if column.dim() == 0 or column.shape[0] != self.size:
                raise InvalidBatch(
                    f"all tensors of a data set must have the same length: the first has {self.size} samples, "
                    f"another has shape {list(column.shape)}"
                )

    def __len__(self) -> int:
        return self.size

    def take(self, indices: Tensor) -> Any:
        """Index every column at once."""
        return pick(self.columns, indices, self.size)

    def span(self, start: int, stop: int) -> Any:
        """Return views, without a copy."""
        return pick(self.columns, slice(start, stop), self.size)


class Samples(Source):
    """A map-style data set: samples fetched one by one (or by ``__getitems__``) and collated.

    With ``workers``, that many processes fetch the next batches while a step is computed, into page-locked memory where
    ``pin`` says so. The batches are the same, in the same order.
    """

    def __init__(self, dataset: Any, collate: Collate, workers: int = 0, pin: bool = False) -> None:
        self.dataset = dataset
        self.collate = collate
        self.workers = workers
        self.pin = pin
        # by batch size and part: their workers live on from anchor to anchor
        self._passes: dict[tuple[int, int, int], DataLoader[Any]] = {}

    def spans(self, size: int, start: int = 0, stop: int | None = None) -> Iterator[Any]:
        """Yield samples in order, fetched ahead."""
        if not self.workers:
            return super().spans(size, start, stop)
        stop = len(self) if stop is None else stop
        key = size, start, stop
        if key not in self._passes:
            plan = [list(range(first, min(first + size, stop))) for first in range(start, stop, size)]
            self._passes[key] = self._loader(plan, persistent=True)
        return iter(self._passes[key])

    def follow(self, plan: Iterable[Tensor]) -> Iterator[Any]:
        """Yield the batches of a plan, fetched ahead."""
        if not self.workers:
            return super().follow(plan)
        return iter(self._loader((indices.tolist() for indices in plan), persistent=False))

    def _loader(self, plan: Iterable[list[int]], *, persistent: bool) -> DataLoader[Any]:
        return DataLoader(
            self.dataset,
            batch_sampler=plan,
            num_workers=self.workers,
            collate_fn=self.collate,
            pin_memory=self.pin,
            persistent_workers=persistent,
            generator=torch.Generator().manual_seed(0),  # the global random state is not a loader's to draw from
        )

    def __len__(self) -> int:
        return len(self.dataset)

    def take(self, indices: Tensor) -> Any:
        """Fetch and collate."""
        wanted = indices.tolist()
        if hasattr(self.dataset, "__getitems__"):
            return self.collate(self.dataset.__getitems__(wanted))
        return self.collate([self.dataset[i] for i in wanted])


class Selected(Source):
    """A subset of another source, so that ``random_split`` of tensors in memory stays an index."""

    def __init__(self, source: Source, indices: Any) -> None:
        self.source = source
        self.indices = torch.as_tensor(indices, dtype=torch.long)

    def __len__(self) -> int:
        return len(self.indices)

    def take(self, indices: Tensor) -> Any:
        """Translate the indices and ask the source below."""
        return self.source.take(self.indices[indices])


class Stream(Source):
    """An endless (or very long) iterable of single samples, read once from front to back.

    Its position is the number of samples consumed. When an earlier position is asked for (a resumed run, or a failed
    step), a re-iterable stream is restarted and skipped ahead; a one-shot iterator continues where it stands.
    """

    finite = False

    def __init__(self, samples: Iterable[Any], collate: Collate) -> None:
        self.samples = samples
        self.collate = collate
        self.consumed = 0
        self._position = 0
        self._iterator: Iterator[Any] | None = None

    def __len__(self) -> int:
        raise TypeError("a stream has no length")

    def take(self, indices: Tensor) -> Any:
        """Streams cannot be indexed."""
        raise TypeError("a stream cannot be indexed")

    def shuffled(self, generator: torch.Generator) -> Tensor:
        """Return no order: a stream is read as it comes."""
        return torch.empty(0, dtype=torch.long)

    def draw(self, order: Tensor, start: int, count: int, part: slice) -> Any:
        """Read the next ``count`` samples, as every process does, and return ``part`` of them; None if empty."""
        batch = self.read(count)
        if part.start == part.stop:
            return None
        return batch if part == slice(0, count) else pick(batch, part, count)

    def read(self, count: int) -> Any:
        """Return the next ``count`` samples as a batch.

        Raises:
            InvalidBatch: the stream has ended.
        """
        iterator, self._iterator = self._seek(), None  # the position of a stream that raises is unknown
        batch = list(islice(iterator, count))
        self._iterator = iterator
        self._position += len(batch)
        if len(batch) < count:
            raise InvalidBatch(
                f"the stream ended after {self._position} samples; pass an endless one, or a data set with a length"
            )
        self.consumed += count
        return self.collate(batch)

    def _seek(self) -> Iterator[Any]:
        iterator = self._iterator
        if isinstance(self.samples, Iterator):
            iterator = self.samples
        else:
            if iterator is None or self._position > self.consumed:
                iterator, self._position = iter(self.samples), 0
            for _ in islice(iterator, self.consumed - self._position):
                pass
        self._position = self.consumed
        return iterator


def as_source(dataset: Any, collate: Collate | None = None, *, workers: int = 0, pin: bool = False) -> Source:
    """Return the right kind of source for what a user calls a data set.

    A tensor, or a tuple, dict or dataclass of tensors, and ``TensorDataset`` are columns in memory. Anything else with
    a length and indexing (a list of samples too) is a map-style data set, and an iterable without a length is a stream.

    Args:
        dataset: what the user gave.
        collate: from a list of samples to a batch.
        workers, pin: how a map-style data set is fetched; data in memory and streams need no help.

    Raises:
        InvalidBatch: it is none of these, or it is empty.
    """
    if isinstance(dataset, Source):
        return dataset
    source = _finite(dataset, collate, workers, pin)
    if source is None:
        if isinstance(dataset, Iterable) and not isinstance(dataset, DataLoader):
            return Stream(dataset, collate or default_collate)
        raise InvalidBatch(
            "a data set must be tensors, a map-style data set or an iterable of samples, found "
            f"{type(dataset).__name__}{'; pass its .dataset' if isinstance(dataset, DataLoader) else ''}"
        )
    if len(source) == 0:
        raise InvalidBatch("the data set is empty; at least one sample is needed")
    return source


def _finite(dataset: Any, collate: Collate | None, workers: int, pin: bool) -> Source | None:
    # Subclasses of TensorDataset and Subset may change the samples in __getitem__, so they are fetched by it.
    if type(dataset) is TensorDataset and collate is None:
        return Columns(dataset.tensors)
    if type(dataset) is Subset:
        inner = _finite(dataset.dataset, collate, workers, pin)
        if not (workers and isinstance(inner, Samples)):  # which fetches a subset ahead as well as the whole
            return Selected(inner, dataset.indices) if inner is not None else None
    if isinstance(dataset, Tensor | tuple | Mapping):
        return Columns(dataset)
    if isinstance(dataset, IterableDataset):
        return None
    if hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__"):
        return Samples(dataset, collate or default_collate, workers, pin)
    return Columns(dataset) if hasattr(dataset, "__dataclass_fields__") else None
