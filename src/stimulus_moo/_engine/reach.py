"""Which parameters each loss reaches, read off the autograd graph without running it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor


def reached(losses: Sequence[Tensor], parameters: Sequence[Tensor]) -> list[list[int]]:
    """Return for each loss the indices of the parameters in its graph, in increasing order."""
    index = {id(parameter): i for i, parameter in enumerate(parameters)}
    members = []
    for loss in losses:
        found = {index.get(id(loss))}
        seen: set[Any] = {None}
        stack = [loss.grad_fn]
        while stack:
            node: Any = stack.pop()
            if node not in seen:
                seen.add(node)
                found.add(index.get(id(getattr(node, "variable", None))))
                stack.extend(child for child, _ in node.next_functions)
        members.append(sorted(i for i in found if i is not None))
    return members
