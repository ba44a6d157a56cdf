"""Snapshot of random state and buffers, so that both points of a step see the same draw and failures leave no trace."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


class Snapshot:
    """The random state (CPU and the model's accelerators) and the model's buffers at one moment.

    ``restore`` may be called more than once: before the second point, so that dropout sees the same draw and buffers
    do not advance there, and after a failure.
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
        """Return whether no random numbers were drawn since."""
        return torch.equal(torch.get_rng_state(), self._cpu) and all(
            torch.equal(_device_module(device).get_rng_state(device), state) for device, state in self._accelerators
        )

    def untouched(self) -> bool:
        """Return whether no random numbers were drawn and no buffer changed since."""
        return self.undrawn() and all(
            module._buffers.keys() == buffers.keys()
            and all(
                module._buffers[name] is buffer and (buffer is None or values is None or torch.equal(buffer, values))
                for name, (buffer, values) in buffers.items()
            )
            for module, buffers in self._buffers
        )

    def restore(self) -> None:
        """Restore the random state and the buffers."""
        torch.set_rng_state(self._cpu)
        for device, state in self._accelerators:
            _device_module(device).set_rng_state(state, device)
        with torch.no_grad():
            for module, buffers in self._buffers:
                for name in module._buffers.keys() - buffers.keys():
                    del module._buffers[name]
                for name, (buffer, values) in buffers.items():
                    module._buffers[name] = buffer  # the module may have replaced the tensor
                    if buffer is not None and values is not None:
                        buffer.copy_(values)


def _copy(buffer: Tensor | None) -> Tensor | None:
    if buffer is None or any(step == 0 and size > 1 for step, size in zip(buffer.stride(), buffer.shape, strict=True)):
        return None  # an expanded tensor cannot be written in place
    return buffer.detach().clone()


def _device_module(device: torch.device) -> Any:
    return torch.get_device_module(device)
