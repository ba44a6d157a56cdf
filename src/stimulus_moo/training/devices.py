"""Batches of ``fit`` on the device of the model."""

from typing import Any

import torch
from torch import Tensor

from stimulus_moo._engine.objective import Losses
from stimulus_moo.data.batches import rebuild


def on_device(model: torch.nn.Module, losses: Losses) -> Losses:
    """Return losses that move each batch to the model's device first; unchanged for a model on the CPU."""
    if not isinstance(model, torch.nn.Module) or not callable(losses):
        return losses  # MultiGradient rejects them
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    if device.type == "cpu":
        return losses

    def move(leaf: Any) -> Any:  # from page-locked memory CUDA copies while the host goes on
        return leaf.to(device, non_blocking=device.type == "cuda") if isinstance(leaf, Tensor) else leaf

    def moved(model: Any, batch: Any) -> Any:
        return losses(model, rebuild(batch, move))

    return moved
