"""Evaluation at two points: the same random draw at both, and x_{t-1} in the parameters for a while."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from stimulus_moo._engine.interrupts import DeferredInterrupts
from stimulus_moo._engine.memory_users import users_of

#: by name, a buffer and a copy of its values
_Buffers = dict[str, tuple[Tensor | None, Tensor | None]]

_CHUNK = 1 << 16  # entries exchanged at a time

SMALL = 1 << 20  # up to this many entries the current values are copied aside instead of exchanged


class Snapshot:
    """The random state (CPU and the model's accelerators) and the model's buffers at one moment.

    ``restore`` may be called more than once: before the second point, so that dropout sees the same draw and buffers
    do not advance there, and after a failure.
    """

    def __init__(self, modules: Sequence[torch.nn.Module], accelerators: Sequence[torch.device] = ()) -> None:
        self._devices = accelerators
        self._random = self.random_states()
        self._modules = modules
        self._buffers = {
            module: {name: (buffer, _copy(buffer)) for name, buffer in module._buffers.items()}
            for module in modules
            if module._buffers
        }

    def random_states(self) -> list[Tensor]:
        """Return the random states of the CPU and of the model's accelerators as they are now."""
        return [torch.get_rng_state(), *(_device_module(device).get_rng_state(device) for device in self._devices)]

    def undrawn(self) -> bool:
        """Return whether no random numbers were drawn since."""
        return all(map(torch.equal, self.random_states(), self._random))

    def untouched(self) -> bool:
        """Return whether no random numbers were drawn and no buffer changed since."""
        return self.undrawn() and all(
            module._buffers.keys() == buffers.keys()
            and all(
                module._buffers[name] is buffer and (buffer is None or values is None or torch.equal(buffer, values))
                for name, (buffer, values) in buffers.items()
            )
            for module, buffers in self._of_modules()
        )

    def restore(self) -> None:
        cpu, *others = self._random
        torch.set_rng_state(cpu)
        for device, state in zip(self._devices, others, strict=True):
            _device_module(device).set_rng_state(state, device)
        with torch.no_grad():
            for module, buffers in self._of_modules():
                for name in module._buffers.keys() - buffers.keys():
                    del module._buffers[name]
                for name, (buffer, values) in buffers.items():
                    module._buffers[name] = buffer  # the module may have replaced the tensor
                    if buffer is not None and values is not None:
                        buffer.copy_(values)

    def _of_modules(self) -> Iterator[tuple[torch.nn.Module, _Buffers]]:
        """Yield the modules that have buffers now or had some then."""
        for module in self._modules:
            if module._buffers or module in self._buffers:
                yield module, self._buffers.get(module, {})


class ParameterSwap:
    """Put other values into the parameters, in place, while the context is open.

    If a signal arrives after the body and before the exit, the parameters still hold the other values; whoever handles
    the exception calls ``back``, which is idempotent. Up to 2^20 entries the parameters' own values are copied aside.
    Above, they are exchanged with the other values, with signals deferred, so that no third copy exists. On the CPU two
    tensors exchange their memory, if no other tensor shares it; else the numbers are moved.
    """

    def __init__(self, parameters: Sequence[Tensor], others: list[Tensor]) -> None:
        self._parameters, self._others = parameters, others
        self._large = sum(parameter.numel() for parameter in parameters) > SMALL
        self._kept: list[Tensor] = []
        self._swapped = False

    def __enter__(self) -> None:
        try:
            if self._large:
                self._exchange(swapped=True)
            else:
                self._kept = [parameter.detach().clone() for parameter in self._parameters]
                self._swapped = True
                self._copy(self._others)
        except BaseException:
            self.back()
            raise

    def __exit__(self, *_: object) -> None:
        self.back()

    def back(self) -> None:
        """Restore the parameters' own values, if they are swapped out."""
        if not self._swapped:
            return
        if self._large:
            self._exchange(swapped=False)
        else:
            self._copy(self._kept)
            self._swapped = False
            self._kept = []
        torch.clear_autocast_cache()  # it may hold low-precision copies of the other values

    def _copy(self, values: Sequence[Tensor]) -> None:
        with torch.no_grad():
            torch._foreach_copy_(list(self._parameters), list(values))

    def _exchange(self, *, swapped: bool) -> None:
        with DeferredInterrupts(), torch.no_grad():
            for i, (parameter, other) in enumerate(zip(self._parameters, self._others, strict=True)):
                if _owns_memory(parameter) and _owns_memory(other):
                    self._others[i] = parameter.data
                    parameter.data = other
                    continue
                for mine, theirs in _chunks(parameter.detach(), other):
                    values = mine.clone()
                    mine.copy_(theirs)
                    theirs.copy_(values)
            self._swapped = swapped


def _owns_memory(tensor: Tensor) -> bool:
    """Return whether no other tensor, such as a view or a NumPy array, shares the memory of a plain CPU tensor."""
    return type(tensor) in (Tensor, torch.nn.Parameter) and tensor.is_cpu and users_of(tensor) == 1


def _chunks(one: Tensor, other: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield two tensors in pieces that stay in the cache, if they are laid out alike."""
    if one.is_contiguous() and other.is_contiguous():
        yield from zip(one.view(-1).split(_CHUNK), other.view(-1).split(_CHUNK), strict=True)
    else:
        yield one, other


def _copy(buffer: Tensor | None) -> Tensor | None:
    if buffer is None or any(step == 0 and size > 1 for step, size in zip(buffer.stride(), buffer.shape, strict=True)):
        return None  # an expanded tensor cannot be written in place
    return buffer.detach().clone()


def _device_module(device: torch.device) -> Any:
    return torch.get_device_module(device)
