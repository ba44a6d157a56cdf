"""What a batch is: any nest of tensors, its size, and how it is cut into pieces; the first stop of every evaluation."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from typing import Any

import numpy as np
from torch import Tensor

from stimulus_moo.errors import InvalidBatch, InvalidOption


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
        return _rebuild_mapping(batch, {key: rebuild(value, change) for key, value in batch.items()})
    if isinstance(batch, tuple | list):
        if not any(True for _ in tensors(batch)):  # a list of file names, say: one leaf
            return change(batch)
        values = [rebuild(value, change) for value in batch]
        return type(batch)(*values) if hasattr(batch, "_fields") else type(batch)(values)
    if _is_dataclass(batch):
        changed = copy.copy(batch)  # not dataclasses.replace, which refuses fields with init=False
        for field in dataclasses.fields(batch):
            object.__setattr__(changed, field.name, rebuild(getattr(batch, field.name), change))
        return changed
    return change(batch)


def require_batches(name: str, value: Any, *, again: bool = False) -> None:
    """Refuse what is no iterable of batches, or with ``again`` one that can be iterated only once."""
    if not isinstance(value, Iterable) or isinstance(value, Tensor | Mapping | str | bytes):
        raise InvalidOption(
            f"{name} must be an iterable of batches (a DataLoader or a list), found {type(value).__name__}; "
            "for a single batch pass [batch]"
        )
    if again and isinstance(value, Iterator):
        raise InvalidOption(
            f"{name} must be something that can be iterated again, found {type(value).__name__}, which is spent after "
            "one pass; pass a DataLoader or a list of batches"
        )


def leading_size(batch: Any) -> int:
    """Return the leading dimension of the batch's first tensor.

    Raises:
        InvalidBatch: there is no tensor in the batch, or its first one has no dimension.

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

    0-d tensors and plain values go into every piece; numpy arrays and lists (file names) of as many entries as there
    are samples are cut too.

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
        yield pick(batch, slice(start, start + pieces), size)


def pick(batch: Any, index: slice | Tensor, size: int) -> Any:
    """Return the samples at ``index`` (a slice, or a tensor of indices) of a batch of ``size`` samples."""

    def chosen(leaf: Any) -> Any:
        if isinstance(leaf, Tensor):
            return leaf[index] if leaf.dim() else leaf
        if isinstance(leaf, np.ndarray) and leaf.ndim and len(leaf) == size:
            return leaf[index if isinstance(index, slice) else index.numpy()]
        if isinstance(leaf, tuple | list) and len(leaf) == size:
            return leaf[index] if isinstance(index, slice) else [leaf[i] for i in index.tolist()]
        return leaf

    return rebuild(batch, chosen)


def _rebuild_mapping(batch: Mapping[Any, Any], changed: dict[Any, Any]) -> Mapping[Any, Any]:
    if not isinstance(batch, MutableMapping):
        return type(batch)(changed)  # type: ignore[call-arg]
    rebuilt = copy.copy(batch)  # keeps what else a subclass holds, such as the factory of a defaultdict
    rebuilt.update(changed)
    return rebuilt


def _is_dataclass(value: Any) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, type)
