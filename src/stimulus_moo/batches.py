"""What a batch is: any nest of tensors, its size, and how it is cut into pieces; the first stop of every evaluation."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from torch import Tensor

from stimulus_moo.errors import InvalidBatch


def tensors(batch: Any) -> Iterator[Tensor]:
    """Yield the tensors of a batch in insertion order: tuples, lists, mappings and dataclasses, nested at will."""
    if isinstance(batch, Tensor):
        yield batch
    elif isinstance(batch, Mapping):
        for value in batch.values():
            yield from tensors(value)
    elif isinstance(batch, tuple | list):
        for value in batch:
            yield from tensors(value)
    elif _is_dataclass(batch):
        for field in dataclasses.fields(batch):
            yield from tensors(getattr(batch, field.name))


def rebuild(batch: Any, change: Callable[[Any], Any]) -> Any:
    """Return the same nest with every leaf replaced by ``change(leaf)``."""
    if isinstance(batch, Tensor):
        return change(batch)
    if isinstance(batch, Mapping):
        changed = {key: rebuild(value, change) for key, value in batch.items()}
        return changed if type(batch) is dict else type(batch)(changed)  # type: ignore[call-arg]
    if isinstance(batch, tuple | list):
        if not any(True for _ in tensors(batch)):  # a list of file names, say: one leaf
            return change(batch)
        values = [rebuild(value, change) for value in batch]
        return type(batch)(*values) if hasattr(batch, "_fields") else type(batch)(values)
    if _is_dataclass(batch):
        names = [field.name for field in dataclasses.fields(batch)]
        return dataclasses.replace(batch, **{n: rebuild(getattr(batch, n), change) for n in names})
    return change(batch)


def leading_size(batch: Any) -> int:
    """Return the leading dimension of the batch's first tensor.

    Raises:
        InvalidBatch: there is no tensor in the batch, or its first one has no dimension or no entries.

    >>> import torch
    >>> leading_size({"image": torch.zeros(5, 3), "label": torch.zeros(5)})
    5
    """
    first = next(tensors(batch), None)
    if first is None:
        raise InvalidBatch(
            f"a batch must hold at least one tensor, found {type(batch).__name__}; "
            "return tensors from the loader, or pass batch_size=, a function from a batch to its size"
        )
    if first.dim() == 0:
        raise InvalidBatch(
            "the first tensor of a batch must have a leading (sample) dimension, found a 0-d tensor; "
            "put a per-sample tensor first, or pass batch_size=, a function from a batch to its size"
        )
    return int(first.shape[0])


def split(batch: Any, pieces: int) -> Iterator[Any]:
    """Cut a batch along its leading dimension into pieces of at most ``pieces`` samples.

    0-d tensors and plain values go into every piece; per-sample lists (file names) are cut too.

    Raises:
        InvalidBatch: a tensor inside has another leading dimension, so that no cut is possible.

    >>> import torch
    >>> [piece[0].shape[0] for piece in split((torch.zeros(5, 3), torch.zeros(5)), 2)]
    [2, 2, 1]
    """
    size = leading_size(batch)
    if size <= pieces:
        yield batch
        return
    for tensor in tensors(batch):
        if tensor.dim() and tensor.shape[0] != size:
            raise InvalidBatch(
                f"micro_batch cannot split this batch: its first tensor has {size} samples but another has shape "
                f"{list(tensor.shape)}; give every tensor the same leading dimension, or leave micro_batch=None"
            )
    for start in range(0, size, pieces):
        yield rebuild(batch, partial(_cut, start=start, stop=min(start + pieces, size), size=size))


def _cut(leaf: Any, start: int, stop: int, size: int) -> Any:
    if isinstance(leaf, Tensor):
        return leaf[start:stop] if leaf.dim() else leaf
    if isinstance(leaf, tuple | list) and len(leaf) == size:
        return leaf[start:stop]
    return leaf


def _is_dataclass(value: Any) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, type)
