"""Batches: nested tensors, their size, and how they are split; the first part of every evaluation."""

import copy
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from typing import Any

import numpy as np
from torch import Tensor

from stimulus_moo.errors import InvalidBatch, InvalidOption


def tensors(batch: Any) -> Iterator[Tensor]:
    """Yield the tensors of a batch in insertion order, from tuples, lists, mappings and dataclasses at any depth."""
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
    """Return a batch of the same structure with every leaf replaced by ``change(leaf)``."""
    if isinstance(batch, Tensor):
        return change(batch)
    if isinstance(batch, Mapping):
        values = {key: rebuild(value, change) for key, value in batch.items()}
        if not isinstance(batch, MutableMapping):
            return type(batch)(values)  # type: ignore[call-arg]
        mapping = copy.copy(batch)  # keeps what a subclass adds, such as the factory of a defaultdict
        mapping.update(values)
        return mapping
    if isinstance(batch, tuple | list):
        if next(tensors(batch), None) is None:  # one leaf, such as a list of file names
            return change(batch)
        items = [rebuild(value, change) for value in batch]
        return type(batch)(*items) if hasattr(batch, "_fields") else type(batch)(items)
    if _is_dataclass(batch):
        changed = copy.copy(batch)  # dataclasses.replace rejects fields with init=False
        for field in dataclasses.fields(batch):
            object.__setattr__(changed, field.name, rebuild(getattr(batch, field.name), change))
        return changed
    return change(batch)


def require_batches(name: str, value: Any, *, again: bool = False) -> None:
    """Raise InvalidOption unless ``value`` is an iterable of batches; ``again`` also rejects one-shot iterators."""
    if not isinstance(value, Iterable) or isinstance(value, Tensor | np.ndarray | Mapping | str | bytes):
        found = f"found {type(value).__name__}; for a single batch pass [batch]"
        raise InvalidOption(f"{name} must be an iterable of batches (a DataLoader or a list), {found}")
    if again and isinstance(value, Iterator):
        found = f"found {type(value).__name__}, which is exhausted after one pass"
        raise InvalidOption(f"{name} must be iterable more than once, {found}; pass a DataLoader or a list of batches")


def leading_size(batch: Any) -> int:
    """Return the leading dimension of the batch's first tensor.

    Raises:
        InvalidBatch: the batch has no tensor, or its first tensor is 0-d.

    >>> import torch
    >>> leading_size({"image": torch.zeros(5, 3), "label": torch.zeros(5)})
    5
    """
    first = batch[0] if type(batch) in (tuple, list) and batch else None
    if not isinstance(first, Tensor):  # else it is the usual case, without a walk over the batch
        first = next(tensors(batch), None)
    if first is not None and first.dim():
        return int(first.shape[0])
    problem = "a first tensor with a leading (sample) dimension, found a 0-d tensor"
    if first is None:
        problem = f"at least one tensor, found {type(batch).__name__}"
    raise InvalidBatch(f"a batch must have {problem}; put a per-sample tensor first, or pass batch_size=function")


def split(batch: Any, pieces: int) -> Iterator[Any]:
    """Split a batch along its leading dimension into pieces of at most ``pieces`` samples.

    NumPy arrays and lists with one entry per sample are split too. 0-d tensors and other values go into every piece.

    Raises:
        InvalidBatch: the tensors differ in their leading dimension.

    >>> import torch
    >>> [piece[0].shape[0] for piece in split((torch.zeros(5, 3), torch.zeros(5)), 2)]
    [2, 2, 1]
    """
    size = leading_size(batch)
    if size <= pieces:
        yield batch
        return
    _require_equal_sizes(batch, size)
    for start in range(0, size, pieces):
        yield pick(batch, slice(start, start + pieces), size)


def cut_at(batch: Any, position: int) -> tuple[Any, Any]:
    """Return the first ``position`` samples of a batch and the others, as ``split`` does; None where there are none.

    >>> import torch
    >>> cut_at(torch.arange(3), 2), cut_at(torch.arange(3), 5)
    ((tensor([0, 1]), tensor([2])), (tensor([0, 1, 2]), None))
    """
    size = leading_size(batch) if batch is not None else 0
    if position <= 0:
        return None, batch
    if position >= size:
        return batch, None
    _require_equal_sizes(batch, size)
    return pick(batch, slice(0, position), size), pick(batch, slice(position, size), size)


def _require_equal_sizes(batch: Any, size: int) -> None:
    for tensor in tensors(batch):
        if tensor.dim() and tensor.shape[0] != size:
            raise InvalidBatch(
                f"micro_batch cannot split this batch: its first tensor has {size} samples but another has shape "
                f"{list(tensor.shape)}; give every tensor the same leading dimension, or leave micro_batch=None"
            )


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


def _is_dataclass(value: Any) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, type)
