"""Which parameters each loss reaches, read off the autograd graph without running it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor


def reached(losses: Sequence[Tensor], parameters: Sequence[Tensor]) -> list[list[int]]:
    """Return for each loss the indices of the parameters in its graph, in increasing order."""
    bit = {id(parameter): 1 << i for i, parameter in enumerate(parameters)}
    masks: dict[Any, int] = {}
    members = []
    for loss in losses:
        mask = bit.get(id(loss), 0) if loss.grad_fn is None else _mask(loss.grad_fn, bit, masks)
        members.append([i for i in range(len(parameters)) if mask >> i & 1])
    return members


def _mask(root: Any, bit: dict[int, int], masks: dict[Any, int]) -> int:
    """Return the union of the leaves below a node; ``masks`` remembers finished nodes across losses."""
    stack = [root]
    while stack:
        node = stack[-1]
        if node in masks:
            stack.pop()
            continue
        below = [child for child, _ in node.next_functions if child is not None]
        waiting = [child for child in below if child not in masks]
        if waiting:
            stack.extend(waiting)
            continue
        leaf = getattr(node, "variable", None)
        mask = bit.get(id(leaf), 0) if leaf is not None else 0
        for child in below:
            mask |= masks[child]
        masks[node] = mask
        stack.pop()
    return masks[root]
