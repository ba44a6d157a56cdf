"""Parameters that FSDP2 (``fully_shard``) has split over the processes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, Replicate, Shard, empty

from stimulus_moo._engine.interrupts import DeferredInterrupts
from stimulus_moo._engine.placement import Placement, is_a
from stimulus_moo._engine.storage import Storage
from stimulus_moo.distributed.fully_sharded import FullyShard
from stimulus_moo.distributed.group import Group
from stimulus_moo.errors import DOCS, InvalidOption

_PAGE = f"see {DOCS}distributed.html#models-sharded-by-fsdp2"


class Shards(Placement):
    """A part is this process's shard of a parameter; FSDP2 gathers parameters and sums and splits gradients.

    The mesh has one dimension, over which parameters are split, or two: replicas, and shards within each. Every forward
    and backward pass is a collective, so all processes evaluate equally many pieces, see ``FullyShard``.
    """

    rowwise_only = "its parameters are split by fully_shard, and gradients arrive in p.grad, one loss at a time"

    independent = False

    def __init__(self, model: nn.Module) -> None:
        self._modules = [module for module in model.modules() if isinstance(module, FSDPModule)]
        self.renew()  # after a forward pass alone, some parameters are still gathered
        parameters = dict(model.named_parameters())
        _require_fully_sharded(model, parameters, self._modules)
        first = next(p for p in parameters.values() if isinstance(p, DTensor))
        self.mesh, self.replicas = first.device_mesh, first.device_mesh.size() // first.device_mesh.size(-1)
        self.group = Group(_group_of(self.mesh))

    def parts(self, parameters: Sequence[Tensor]) -> list[Tensor]:
        """Return the local shards."""
        return [_local(parameter) for parameter in parameters]

    def keeps(self, parts: Sequence[Tensor], parameters: Sequence[Tensor]) -> bool:
        """Return whether FSDP still has the same shards; loading a state with ``assign=True`` replaces them."""
        return all(part is _local(parameter) for part, parameter in zip(parts, parameters, strict=True))

    def part_of(self, value: Tensor, parameter: Tensor) -> Tensor:
        """Return the shard of a value; a whole one is cut, one on another mesh is gathered first."""
        assert isinstance(parameter, DTensor)
        if isinstance(value, DTensor):
            if value.device_mesh == parameter.device_mesh and value.placements == parameter.placements:
                return _local(value)
            value = value.full_tensor()
        dim, start, length = self._range(parameter)
        return value.narrow(dim, start, length)

    def joined(self, part: Tensor, parameter: Tensor) -> Tensor:
        """Return the DTensor with this shard."""
        assert isinstance(parameter, DTensor)
        shape, stride = parameter.shape, parameter.stride()
        found: Tensor = DTensor.from_local(
            part, parameter.device_mesh, parameter.placements, run_check=False, shape=shape, stride=stride
        )
        return found

    def blank(self, shape: Sequence[int], dtype: torch.dtype, dim: int) -> Tensor:
        """Return an empty DTensor."""
        placements = [*[Replicate()] * (self.mesh.ndim - 1), Shard(dim)]
        found: Tensor = empty(*shape, dtype=dtype, device_mesh=self.mesh, placements=placements)
        return found

    def directions(self, parts: Sequence[Tensor | None], parameters: Sequence[Tensor]) -> Sequence[Tensor | None]:
        """Return DTensors, as FSDP leaves them in ``p.grad``."""
        pairs = zip(parts, parameters, strict=True)
        return [None if part is None else self.joined(part, parameter) for part, parameter in pairs]

    def starts(self, parameters: Sequence[Tensor]) -> list[int]:
        """Return where each shard begins, if the entries of all parameters are numbered shard by shard."""
        first = 0
        found = []
        for parameter in parameters:
            dim, start, _ = self._range(parameter)
            found.append(first + start * (parameter.numel() // max(1, parameter.shape[dim])))
            first += parameter.numel()
        return found

    def gradients(self, loss: Tensor, parameters: Sequence[Tensor], *, retain_graph: bool) -> list[Tensor | None]:
        """Return the shards of the mean gradient over all processes; ``p.grad`` stays as it was."""
        kept = [parameter.grad for parameter in parameters]
        try:
            for parameter in parameters:
                parameter.grad = None
            torch.autograd.backward(loss, retain_graph=retain_graph)
            return [None if parameter.grad is None else _local(parameter.grad) for parameter in parameters]
        finally:
            with DeferredInterrupts():
                for parameter, gradient in zip(parameters, kept, strict=True):
                    parameter.grad = gradient

    def masks(
        self, graphs: Sequence[Tensor | None], parameters: Sequence[Tensor], counts: Sequence[float] | None
    ) -> list[int]:
        """Return nothing: the graph is made of gathered copies, and what a loss reaches shows in its gradient."""
        return [0] * len(parameters)

    def renew(self) -> None:
        """Let FSDP gather the parameters again: they may have changed since a forward pass without a backward one."""
        for module in self._modules:
            module.reshard()

    def recover(self) -> None:
        """Let FSDP forget a pass that was interrupted."""
        root: Any = self._modules[0]
        begun = getattr(root._get_fsdp_state(), "_is_root", False)  # has it been called?
        if begun and hasattr(root, "reset_iter_state"):  # older versions of torch cannot go on
            root.reset_iter_state()

    def totals(self, values: Sequence[float]) -> Sequence[float]:
        """Return the sums over all shards."""
        found: list[float] = (self.group.sum(torch.tensor(values, dtype=torch.float64)) / self.replicas).tolist()
        return found

    def norm(self, value: float) -> float:
        """Return the norm of a vector, given that of its shard."""
        return math.sqrt(*self.totals([value * value]))

    def digest(self, parameter: Tensor) -> str:
        """Return nothing about values: every process has others."""
        return "split by fully_shard"

    def new_reducer(self, storage: Storage) -> FullyShard:
        """Return how the processes evaluate a model together."""
        return FullyShard(self.group, storage, self.replicas)

    def _range(self, parameter: Tensor) -> tuple[int, int, int]:
        """Return along which dimension a parameter is split, where this process's shard begins, and its length."""
        assert isinstance(parameter, DTensor)
        dim = _dim(parameter)
        size, processes = parameter.shape[dim], self.mesh.size(-1)
        chunk = -(-size // processes)
        start = min(chunk * self.mesh.get_local_rank(self.mesh.ndim - 1), size)
        return dim, start, min(chunk, size - start)


def _local(tensor: Tensor) -> Tensor:
    assert isinstance(tensor, DTensor)
    return tensor._local_tensor  # itself: ``to_local`` may return a view


def _dim(parameter: DTensor) -> int:
    placement = parameter.placements[-1]
    assert isinstance(placement, Shard)
    return placement.dim


def _require_fully_sharded(model: nn.Module, parameters: dict[str, nn.Parameter], modules: list[Any]) -> None:
    """Raise InvalidOption unless FSDP2 and nothing else has split the parameters, all of them."""
    old = [type(module).__name__ for module in model.modules() if is_a(module, "FullyShardedDataParallel")]
    problem = f"{old[0]}, which is FSDP1" if old else None
    if problem is None and not modules:
        problem = "DTensors without fully_shard, as tensor parallelism makes them"
    for name, parameter in parameters.items():
        if problem is None and not isinstance(parameter, DTensor):
            problem = f"parameter {name!r} that is whole, beside others that are split"
        elif problem is None and isinstance(parameter, DTensor):
            *others, last = parameter.placements
            plain = isinstance(last, Shard) and len(others) <= 1 and all(isinstance(one, Replicate) for one in others)
            if not plain or type(last) is not Shard:
                problem = f"parameter {name!r} with the placements {parameter.placements}, as of tensor parallelism"
    if problem is None and modules[0] is not model:
        problem = "fully_shard on its layers only"
    if problem is not None:
        raise InvalidOption(
            f"model must have whole parameters, or all of them split by FSDP2, found {problem}; call "
            f"torch.distributed.fsdp.fully_shard on its layers and last on the model. {_PAGE}"
        )
    for module in modules:
        for group in getattr(module._get_fsdp_state(), "_fsdp_param_groups", ()):
            if getattr(group, "gradient_divide_factor", None) is not None:
                raise InvalidOption(
                    "model must average gradients as fully_shard does, found a factor of its own by "
                    f"set_gradient_divide_factor: {group.gradient_divide_factor}; leave it out. {_PAGE}"
                )


def _group_of(mesh: Any) -> Any:
    """Return the process group of all processes of a mesh; None is that of all processes."""
    if mesh.size() == dist.get_world_size():
        return None
    if mesh.ndim == 1:
        return mesh.get_group()
    raise InvalidOption(
        f"a mesh of two dimensions must have all {dist.get_world_size()} processes, found {mesh.size()}. {_PAGE}"
    )
