"""The guard around evaluations: random state, buffers and parameters come back exactly as they were."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import Any

import torch
from torch import Tensor

from stimulus_moo._engine.interrupts import DeferredInterrupts

_SMALL = 1 << 20  # entries of which a copy is made rather than exchange them one by one


class Snapshot:
    """A snapshot of the random state (CPU and the model's accelerators) and of the model's buffers.

    ``restore`` can be called more than once: before the second point, so that dropout sees the same draw and buffers do
    not advance there, and after a failure, so that nothing has happened.
    """

    def __init__(self, model: torch.nn.Module, parameters: Sequence[Tensor]) -> None:
        self._cpu = torch.get_rng_state()
        devices = {parameter.device for parameter in parameters if parameter.device.type not in ("cpu", "meta")}
        self._accelerators = [(device, _device_module(device).get_rng_state(device)) for device in devices]
        self._buffers = [
            (module, {name: (buffer, _copy(buffer)) for name, buffer in module._buffers.items()})
            for module in model.modules()
        ]

    def undrawn(self) -> bool:
        """Tell whether nobody has drawn random numbers since."""
        return torch.equal(torch.get_rng_state(), self._cpu) and all(
            torch.equal(_device_module(device).get_rng_state(device), state) for device, state in self._accelerators
        )

    def untouched(self) -> bool:
        """Tell whether nobody has drawn random numbers or changed a buffer since."""
        return self.undrawn() and all(
            module._buffers.keys() == buffers.keys()
            and all(
                module._buffers[name] is buffer and (buffer is None or values is None or torch.equal(buffer, values))
                for name, (buffer, values) in buffers.items()
            )
            for module, buffers in self._buffers
        )

    def restore(self) -> None:
        """Set everything back to the moment of the snapshot."""
        torch.set_rng_state(self._cpu)
        for device, state in self._accelerators:
            _device_module(device).set_rng_state(state, device)
        with torch.no_grad():
            for module, buffers in self._buffers:
                for name in module._buffers.keys() - buffers.keys():
                    del module._buffers[name]
                for name, (buffer, values) in buffers.items():
                    module._buffers[name] = buffer  # a module may have put another tensor in its place
                    if buffer is not None and values is not None:
                        buffer.copy_(values)


class swapped:
    """Put other values into the parameters, in place, for the time of the context.

    A signal that strikes between the end of the context's body and the way back leaves that to ``back``, which whoever
    catches the exception calls. Up to 2^20 entries their own values are kept aside; above, they are kept in the place
    of the others, an exchange that no signal cuts in two.
    """

    def __init__(self, parameters: Sequence[Tensor], others: Sequence[Tensor]) -> None:
        self._parameters, self._others = parameters, others
        self._large = sum(parameter.numel() for parameter in parameters) > _SMALL
        self._kept: list[Tensor] = []
        self._away = False

    def __enter__(self) -> None:
        try:
            if self._large:
                self._exchange(away=True)
            else:
                self._kept = [parameter.detach().clone() for parameter in self._parameters]
                self._away = True
                self._copy(self._others)
        except BaseException:
            self.back()
            raise

    def __exit__(self, *_: object) -> None:
        self.back()

    def back(self) -> None:
        """Put the parameters' own values back, if they are elsewhere."""
        if not self._away:
            return
        if self._large:
            self._exchange(away=False)
        else:
            self._copy(self._kept)
            self._away = False
        torch.clear_autocast_cache()  # it may hold low-precision copies of the other values

    def _copy(self, values: Sequence[Tensor]) -> None:
        with torch.no_grad():
            torch._foreach_copy_(list(self._parameters), list(values))

    def _exchange(self, *, away: bool) -> None:
        with DeferredInterrupts(), torch.no_grad():
            for parameter, other in zip(self._parameters, self._others, strict=True):
                values = parameter.clone()
                parameter.copy_(other)
                other.copy_(values)
            self._away = away


def autocasts(devices: Iterable[torch.device]) -> list[str]:
    """Return the kinds of device, among these and the CPU, for which the user's autocast is on."""
    kinds = {"cpu", *(device.type for device in devices)}
    return [kind for kind in kinds if torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)]


def full_precision(devices: Iterable[torch.device]) -> AbstractContextManager[Any]:
    """Switch the user's autocast off for the library's own arithmetic."""
    stack = ExitStack()
    for kind in autocasts(devices):
        stack.enter_context(torch.autocast(kind, enabled=False))
    return stack


def _copy(buffer: Tensor | None) -> Tensor | None:
    if buffer is None or any(step == 0 and size > 1 for step, size in zip(buffer.stride(), buffer.shape, strict=True)):
        return None  # an expanded tensor cannot be written in place, by anyone
    return buffer.detach().clone()


def _device_module(device: torch.device) -> Any:
    return torch.get_device_module(device)
