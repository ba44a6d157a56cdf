"""Where a model's parameters are: whole in every process, or split over the processes.

The engine computes with *parts*, plain tensors: rows, x_{t-1} and the direction have one entry per part. Where the
parameters are whole, a part is the parameter itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from stimulus_moo._engine.digest import digest_of
from stimulus_moo.errors import InvalidLosses, InvalidOption

if TYPE_CHECKING:
    from stimulus_moo._engine.storage import Storage
    from stimulus_moo.distributed.reducer import AllReduce


class Placement:
    """Parameters that are whole in every process."""

    rowwise_only: str | None = None  #: why no engine but rowwise can differentiate, if so
    independent = True  #: can each process differentiate losses of its own?
    group: Any = None  #: the processes over which the parameters are split

    def parts(self, parameters: Sequence[Tensor]) -> list[Tensor]:
        """Return this process's parts of the parameters, which share their memory."""
        return list(parameters)

    def keeps(self, parts: Sequence[Tensor], parameters: Sequence[Tensor]) -> bool:
        """Return whether these are still the parts of the parameters."""
        return True

    def part_of(self, value: Tensor, parameter: Tensor) -> Tensor:
        """Return this process's part of a value of the parameter's shape; collective if the value is split."""
        return value.full_tensor() if is_a(value, "DTensor") else value  # type: ignore[attr-defined]

    def joined(self, part: Tensor, parameter: Tensor) -> Tensor:
        """Return the value of the parameter's shape of which this is this process's part."""
        return part

    def blank(self, shape: Sequence[int], dtype: torch.dtype, dim: int) -> Tensor:
        """Return an empty tensor, split as parameters are: along this dimension, where they are split."""
        return torch.empty(tuple(shape), dtype=dtype)

    def directions(self, parts: Sequence[Tensor | None], parameters: Sequence[Tensor]) -> Sequence[Tensor | None]:
        """Return what ``p.grad`` is set to, from the parts of a direction."""
        return parts

    def starts(self, parameters: Sequence[Tensor]) -> list[int]:
        """Return where each part begins, if all entries of all parameters are numbered."""
        return torch.tensor([0, *map(Tensor.numel, parameters)]).cumsum(0).tolist()[:-1]

    def gradients(self, loss: Tensor, parameters: Sequence[Tensor], *, retain_graph: bool) -> list[Tensor | None]:
        """Return the parts of the gradient, None where the loss does not reach a parameter."""
        return list(torch.autograd.grad(loss, parameters, retain_graph=retain_graph, allow_unused=True))

    def masks(
        self, graphs: Sequence[Tensor | None], parameters: Sequence[Tensor], counts: Sequence[float] | None
    ) -> list[int]:
        """Return for each parameter the bit mask of the losses that reach it, read off the autograd graph.

        A loss whose count is 0 may reach nothing.
        """
        index = {id(parameter): i for i, parameter in enumerate(parameters)}
        masks = [0] * len(parameters)
        for s, loss in enumerate(graphs):
            if loss is None:
                continue
            found, seen, stack = {index.get(id(loss))}, {None}, [loss.grad_fn]
            while stack:
                node: Any = stack.pop()
                if node not in seen:
                    seen.add(node)
                    found.add(index.get(id(getattr(node, "variable", None))))
                    stack.extend(child for child, _ in node.next_functions)
            if found == {None} and (counts is None or counts[s]):
                raise reaches_nothing(s)
            masks = [mask | (i in found) << s for i, mask in enumerate(masks)]
        return masks

    def renew(self) -> None:
        """Forget copies of the parameters' values, before a forward pass."""

    def recover(self) -> None:
        """Get ready for the next forward pass after one that failed."""

    def totals(self, values: Sequence[float]) -> Sequence[float]:
        """Return the sums of numbers over all parts of the parameters."""
        return values

    def norm(self, value: float) -> float:
        """Return the norm of a vector, given that of this process's parts."""
        return value

    def digest(self, parameter: Tensor) -> str:
        """Return what must be the same in all processes about a parameter's values."""
        return digest_of(parameter)

    def new_reducer(self, storage: Storage) -> AllReduce | None:
        """Return how sums are formed if the model is evaluated by all processes in any case."""
        return None


_SHARDING = ("FSDPModule", "FullyShardedDataParallel")  # modules of FSDP2, also while it has gathered them, and FSDP1

#: parameters that are whole
WHOLE = Placement()


def find_placement(model: nn.Module) -> Placement:
    """Return where the parameters of a model are; raise InvalidOption where that is not supported."""
    # By name: torch imports these classes only where somebody uses them, and that takes a second.
    split = any(is_a(parameter, "DTensor") for parameter in model.parameters())
    if not split and not any(is_a(one, kind) for one in model.modules() for kind in _SHARDING):
        return WHOLE
    from stimulus_moo.distributed.shards import Shards  # which needs the rest of the engine

    return Shards(model)


def require_copyable(model: nn.Module, what: str) -> None:
    """Raise InvalidOption if ``what`` copies a model that cannot be copied, since it is split over the processes."""
    if not find_placement(model).independent:
        raise InvalidOption(
            f"{what} trains copies of the model, and a model that is split by fully_shard cannot be copied; use one "
            "that is not split, or bounds that are numbers"
        )


def is_a(value: object, name: str) -> bool:
    """Return whether a value is of a class with this name."""
    return any(kind.__name__ == name for kind in type(value).__mro__)


def reaches_nothing(objective: int) -> InvalidLosses:
    return InvalidLosses(
        f"the loss of objective {objective} depends on no trainable parameter; compute it from the model's output "
        "without .detach(), .item() or torch.no_grad()"
    )
