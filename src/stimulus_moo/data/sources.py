"""Data sources (tensors in memory, map-style data sets, streams), and the batches that a run draws from them."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any
from weakref import WeakSet

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, Subset, TensorDataset, default_collate

from stimulus_moo.data.batches import leading_size, pick, tensors
from stimulus_moo.data.partition import Partition
from stimulus_moo.data.random_streams import permutation
from stimulus_moo.errors import InvalidBatch

Collate = Callable[[list[Any]], Any]


class Source:
    """A data set from which batches are drawn: by index if it is finite, in order if it is a stream."""

    finite = True  #: whether the data set has a length
    consumed = 0  #: number of samples read from a stream

    def __len__(self) -> int:
        raise TypeError("a stream has no length")

    def take(self, indices: Tensor) -> Any:
        """Return the samples at these indices as a batch."""
        raise TypeError("a stream cannot be indexed")

    def shuffled(self, generator: torch.Generator) -> Tensor:
        """Return the indices of all samples in random order; none for a stream, which has its own order."""
        return torch.randperm(len(self), generator=generator) if self.finite else torch.empty(0, dtype=torch.long)

    def draw(self, order: Tensor, start: int, count: int, part: slice) -> Any:
        """Return ``part`` of the ``count`` samples that follow ``start`` in ``order``; None if that is empty."""
        return None if part.start == part.stop else self.take(order[start : start + count][part])

    def span(self, start: int, stop: int) -> Any:
        """Return the samples from ``start`` to ``stop`` as a batch."""
        return self.take(torch.arange(start, stop))

    def spans(self, size: int, start: int = 0, stop: int | None = None) -> Iterator[Any]:
        """Yield the samples from ``start`` to ``stop``, by default all, in batches of at most ``size``."""
        stop = len(self) if stop is None else stop
        return (self.span(first, min(first + size, stop)) for first in range(start, stop, size))

    def follow(self, plan: Iterable[Tensor]) -> Iterator[Any]:
        """Yield one batch for each tensor of indices."""
        return map(self.take, plan)

    def close(self) -> None:
        """End the processes that prefetch; the next use starts new ones."""


class Columns(Source):
    """Tensors in memory, one row per sample: a tensor, or a tuple, dict or dataclass of tensors of equal length."""

    def __init__(self, columns: Any) -> None:
        self.columns, self.size = columns, leading_size(columns)
        for column in tensors(columns):
            if column.dim() == 0 or column.shape[0] != self.size:
                raise InvalidBatch(
                    f"all tensors of a data set must have the same length, found: the first has {self.size} samples, "
                    f"another has shape {list(column.shape)}"
                )

    def __len__(self) -> int:
        return self.size

    def take(self, indices: Tensor) -> Any:
        """Index every column."""
        return pick(self.columns, indices, self.size)

    def span(self, start: int, stop: int) -> Any:
        """Slice every column; the result is a view."""
        return pick(self.columns, slice(start, stop), self.size)


class Samples(Source):
    """A map-style data set: samples are fetched one by one (or by ``__getitems__``) and collated.

    ``workers`` processes prefetch the same batches in the same order, into page-locked memory if ``pin`` is True.
    """

    def __init__(self, dataset: Any, collate: Collate, workers: int = 0, pin: bool = False) -> None:
        self.dataset, self.collate, self.workers, self.pin = dataset, collate, workers, pin
        # by size, start and stop; their workers persist from one anchor to the next
        self._passes: dict[tuple[int, int, int], DataLoader[Any]] = {}
        self._iterators: WeakSet[Any] = WeakSet()  # of all loaders, to end their workers

    def spans(self, size: int, start: int = 0, stop: int | None = None) -> Iterator[Any]:
        """Yield the samples in order, prefetched if there are workers."""
        if not self.workers:
            return super().spans(size, start, stop)
        stop = len(self) if stop is None else stop
        key = size, start, stop
        if key not in self._passes:
            plan = [list(range(first, min(first + size, stop))) for first in range(start, stop, size)]
            self._passes[key] = self._loader(plan, persistent=True)
        return self._started(self._passes[key])

    def follow(self, plan: Iterable[Tensor]) -> Iterator[Any]:
        """Yield the batches, prefetched if there are workers."""
        if not self.workers:
            return super().follow(plan)
        return self._started(self._loader((indices.tolist() for indices in plan), persistent=False))

    def close(self) -> None:
        """End the workers now: those of a loader that the garbage collector finds take five seconds each to end."""
        for iterator in list(self._iterators):
            iterator._shutdown_workers()  # torch has no public name for it
        self._passes.clear()

    def _started(self, loader: DataLoader[Any]) -> Iterator[Any]:
        iterator = iter(loader)
        self._iterators.add(iterator)
        return iterator

    def _loader(self, plan: Iterable[list[int]], *, persistent: bool) -> DataLoader[Any]:
        return DataLoader(
            self.dataset,
            batch_sampler=plan,
            num_workers=self.workers,
            collate_fn=self.collate,
            pin_memory=self.pin,
            persistent_workers=persistent,
            generator=torch.Generator().manual_seed(0),  # leaves the global random state alone
        )

    def __len__(self) -> int:
        return len(self.dataset)

    def take(self, indices: Tensor) -> Any:
        """Fetch and collate the samples."""
        wanted = indices.tolist()
        if hasattr(self.dataset, "__getitems__"):
            return self.collate(self.dataset.__getitems__(wanted))
        return self.collate([self.dataset[i] for i in wanted])


class Selected(Source):
    """A subset of another source, so that a ``random_split`` of tensors in memory is still indexed directly."""

    def __init__(self, source: Source, indices: Any) -> None:
        self.source, self.indices = source, torch.as_tensor(indices, dtype=torch.long)

    def __len__(self) -> int:
        return len(self.indices)

    def take(self, indices: Tensor) -> Any:
        """Take the samples from the other source."""
        return self.source.take(self.indices[indices])


class Stream(Source):
    """An endless or very long iterable of single samples, read in order.

    Its position is ``consumed``. After that is set back (by a resumed run or a failed step), a re-iterable stream is
    restarted and skipped ahead; a one-shot iterator continues from its current position.
    """

    finite = False

    def __init__(self, samples: Iterable[Any], collate: Collate) -> None:
        self.samples, self.collate = samples, collate
        self._position = 0
        self._iterator: Iterator[Any] | None = None

    def draw(self, order: Tensor, start: int, count: int, part: slice) -> Any:
        """Read the next ``count`` samples, in every process, and return ``part`` of them; None if that is empty."""
        batch = self.read(count)
        if part.start == part.stop:
            return None
        return batch if part == slice(0, count) else pick(batch, part, count)

    def read(self, count: int) -> Any:
        """Return the next ``count`` samples as a batch.

        Raises:
            InvalidBatch: the stream has ended.
        """
        iterator, self._iterator = self._iterator, None  # the position of an iterator that raises is unknown
        if isinstance(self.samples, Iterator):
            iterator = self.samples
        else:
            if iterator is None or self._position > self.consumed:
                iterator, self._position = iter(self.samples), 0
            for _ in islice(iterator, self.consumed - self._position):
                pass
        batch = list(islice(iterator, count))
        self._iterator, self._position = iterator, self.consumed + len(batch)
        if len(batch) < count:
            raise InvalidBatch(
                f"the stream ended after {self._position} samples; pass an endless stream, or a data set with a length"
            )
        self.consumed += count
        return self.collate(batch)


class BatchPlan:
    """The batches of a training run, as a function of the seed and the step, so that a resumed run sees the same ones.

    Every process takes its part of the same batch. A stream is read completely by each process.
    """

    def __init__(self, source: Source, size: int, seed: int, partition: Partition) -> None:
        self.source, self.size, self.seed = source, size, seed
        self.part = partition.part(size)  # this process's samples of every batch
        self._next = -1  # the step of the iterator's next batch; -1 if unknown
        self._iterator: Iterator[Any] = iter(())

    def at(self, step: int) -> Any:
        """Return this process's part of the batch of a step; None if it is empty."""
        if not self.source.finite:
            return self.source.draw(self.source.shuffled(torch.Generator()), 0, self.size, self.part)
        if self.part.start == self.part.stop:
            return None
        if step != self._next:
            self._iterator = self.source.follow(self._indices(step))
        self._next = -1  # in case the iterator raises
        batch = next(self._iterator)
        self._next = step + 1
        return batch

    def _indices(self, step: int) -> Iterator[Tensor]:
        """Yield the indices of the batches from a step on, without end."""
        size = len(self.source)
        epoch, slot = divmod(step, size // self.size)
        while True:
            order = permutation(self.seed, "batches", epoch, size)
            for indices in order[slot * self.size : size // self.size * self.size].split(self.size):
                yield indices[self.part]
            epoch, slot = epoch + 1, 0


def as_source(dataset: Any, collate: Collate | None = None, *, workers: int = 0, pin: bool = False) -> Source:
    """Return the source for a data set.

    A tensor, a tuple, dict or dataclass of tensors, and ``TensorDataset`` are columns in memory. Anything else with a
    length and indexing, such as a list of samples, is a map-style data set. An iterable without a length is a stream.
    NumPy arrays in a tuple or dict become tensors that share their memory.

    Args:
        dataset: the data set.
        collate: from a list of samples to a batch.
        workers, pin: as for ``Samples``; the other sources ignore them.

    Raises:
        InvalidBatch: the data set is none of these, or it is empty.
    """
    if isinstance(dataset, Source):
        return dataset
    if type(dataset).__module__.partition(".")[0] in ("pandas", "polars"):
        kind = type(dataset).__name__
        raise InvalidBatch(f"dataset must be tensors, found a {kind}; pass torch.from_numpy(frame.to_numpy())")
    source = _finite(dataset, collate, workers, pin)
    if source is None:
        if isinstance(dataset, Iterable) and not isinstance(dataset, DataLoader):
            return Stream(dataset, collate or default_collate)
        raise InvalidBatch(
            "a data set must be tensors, a map-style data set or an iterable of samples, found "
            f"{type(dataset).__name__}{'; pass its .dataset' if isinstance(dataset, DataLoader) else ''}"
        )
    if len(source) == 0:
        raise InvalidBatch("the data set is empty; pass at least one sample")
    return source


def _finite(dataset: Any, collate: Collate | None, workers: int, pin: bool) -> Source | None:
    # Subclasses of TensorDataset and Subset may change the samples in __getitem__, so these are fetched by it.
    if type(dataset) is TensorDataset and collate is None:
        return Columns(dataset.tensors)
    if type(dataset) is Subset:
        inner = _finite(dataset.dataset, collate, workers, pin)
        if not (workers and isinstance(inner, Samples)):  # workers prefetch a subset as any data set
            return Selected(inner, dataset.indices) if inner is not None else None
    if isinstance(dataset, Tensor | tuple | Mapping):
        return Columns(_with_tensors(dataset))
    if isinstance(dataset, IterableDataset):
        return None
    if hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__"):
        return Samples(dataset, collate or default_collate, workers, pin)
    return Columns(dataset) if hasattr(dataset, "__dataclass_fields__") else None


def _with_tensors(dataset: Any) -> Any:
    """Return a plain tuple or dict with tensors in place of NumPy arrays."""
    if type(dataset) is tuple:
        return tuple(map(_as_tensor, dataset))
    return {name: _as_tensor(column) for name, column in dataset.items()} if type(dataset) is dict else dataset


def _as_tensor(leaf: Any) -> Any:
    return torch.from_numpy(leaf) if isinstance(leaf, np.ndarray) and leaf.ndim and leaf.dtype.kind in "biuf" else leaf
