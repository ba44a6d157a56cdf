"""Models and losses that the user has compiled: their own names, and graphs that serve more than one backward pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from stimulus_moo._engine.hooks import nodes_of

_WRAPPED = "_orig_mod"  # the module inside what torch.compile(module) returns


def plain_name(name: str) -> str:
    """Return the name of a parameter or module as it is without torch.compile.

    >>> plain_name("_orig_mod.trunk._orig_mod.weight")
    'trunk.weight'
    """
    return ".".join(part for part in name.split(".") if part != _WRAPPED)


def original(model: nn.Module) -> nn.Module:
    """Return the module that was given to torch.compile, or the model itself; they share everything but the names."""
    inner = model._modules.get(_WRAPPED)
    return model if inner is None else inner


def is_compiled(model: nn.Module, losses: Any) -> bool:
    """Return whether torch.compile was applied to the model, to a part of it, or to the losses."""
    return hasattr(losses, "_torchdynamo_orig_callable") or any(
        _WRAPPED in module._modules or module._compiled_call_impl is not None for module in model.modules()
    )


def keep_buffers() -> Any:
    """Let compiled graphs keep their buffers, so that every objective gets its backward pass.

    For both passes: torch reads the setting when it compiles, and again in the backward pass.
    """
    import torch._functorch.config as config  # not before it is needed: most models are not compiled

    return config.patch(donated_buffer=False)


def gives_buffers_away(losses: Sequence[Tensor]) -> bool:
    """Return whether a graph serves one backward pass only, since a part was compiled outside ``keep_buffers``."""
    compiled = (getattr(getattr(node, "_forward_cls", None), "metadata", None) for node in nodes_of(losses))
    return any(getattr(metadata, "bw_donated_idxs", None) for metadata in compiled)


def forget_compiled() -> None:
    """Drop everything that torch.compile has compiled; it is compiled again where it is used."""
    torch._dynamo.reset()
