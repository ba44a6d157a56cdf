"""Finds Python code in the backward pass of S losses: hooks and autograd functions, which must see plain tensors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import BackwardCFunction
from torch.nn.modules import module as modules
from torch.utils.hooks import RemovableHandle

_GLOBAL = (
    modules._global_forward_pre_hooks,
    modules._global_forward_hooks,
    modules._global_backward_pre_hooks,
    modules._global_backward_hooks,
)

#: types of nodes that were seen not to be Python code
_native: set[type] = set()

#: by type of node, the names of the tensors it has saved for the backward pass
_saved: dict[type, list[str]] = {}


def registered() -> int:
    """Return how many hooks of any kind this process has registered so far.

    A hook on an intermediate tensor or on a node of the graph cannot be listed. It is registered while the losses are
    evaluated, by the user or by a module that has backward hooks, and every registration advances this count.
    """
    return int(RemovableHandle.next_id)


@contextmanager
def noticing_retain_grad() -> Iterator[list[Tensor]]:
    """Yield a list that gets the tensors on which ``retain_grad`` is called meanwhile."""
    found: list[Tensor] = []

    def retain_grad(tensor: Tensor) -> None:
        found.append(tensor)
        torch._C.TensorBase.retain_grad(tensor)

    torch.Tensor.retain_grad = retain_grad  # type: ignore[assignment,method-assign]
    try:
        yield found
    finally:
        with suppress(AttributeError):  # another thread was first
            del torch.Tensor.retain_grad  # the inherited one is in force again


def nodes_of(losses: Sequence[Tensor]) -> list[Any]:
    """Return the nodes of the autograd graph of these losses."""
    seen: set[Any] = {loss.grad_fn for loss in losses} - {None}
    nodes = list(seen)
    for node in nodes:  # which grows; written for speed, since every step of a small model pays for it
        for child, _ in node.next_functions:
            if child not in seen and child is not None:
                seen.add(child)
                nodes.append(child)
    return nodes


def find_python(losses: Sequence[Tensor], parameters: Iterable[Tensor], *, saved: bool = False) -> str | None:
    """Return what Python code the backward pass of these losses runs, apart from hooks on intermediate tensors.

    ``saved`` also looks for hooks that unpack saved tensors, which takes longer; these never see a gradient.
    """
    for parameter in parameters:
        if parameter._backward_hooks:
            return "a parameter has a hook"
    nodes = nodes_of(losses)
    for kind in set(map(type, nodes)) - _native:
        if issubclass(kind, BackwardCFunction):
            if kind.__name__ == "CompiledFunctionBackward":
                return "a part of it was compiled by torch.compile, which runs its backward pass from Python"
            return f"its graph has the node {kind.__name__}, whose backward pass is Python code"
        _native.add(kind)
    if saved and any(map(_unpacks, nodes)):
        return "it saves tensors for the backward pass with saved_tensors_hooks or torch.utils.checkpoint"
    return None


def hooks_of(modules: Sequence[nn.Module], parameters: Sequence[Tensor]) -> list[int]:
    """Return the numbers of the hooks on these modules and parameters now, and of the global module hooks."""
    found: list[int] = []
    for module in modules:
        if module._forward_pre_hooks or module._forward_hooks or module._backward_pre_hooks or module._backward_hooks:
            found += (*module._forward_pre_hooks, *module._forward_hooks)
            found += (*module._backward_pre_hooks, *module._backward_hooks)
    for parameter in parameters:
        found += parameter._backward_hooks or ()
    for hooks in _GLOBAL:
        found += hooks
    return found


def _unpacks(node: Any) -> bool:
    """Return whether a node calls Python for the tensors it has saved."""
    names = _saved.get(type(node))
    if names is None:
        names = _saved[type(node)] = [name for name in dir(node) if name.startswith("_raw_saved_")]
    for name in names:
        found = getattr(node, name)
        for saved in found if isinstance(found, tuple) else (found,):
            if getattr(saved, "unpack_hook", None) is not None:  # SavedTensor.unpack_hook came after torch 2.6
                return True
    return False
