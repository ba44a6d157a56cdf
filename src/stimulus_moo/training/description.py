"""Describes what decides the path of a run, so that a resumed run with anything else is refused by name.

A description is text that is the same in every process: no addresses, no order of a set, no mutable counters.
Functions are described by a digest of their code, the constants and defaults in it, and the plain values it takes from
outside. Comments, docstrings and line numbers are of no account; another version of Python compiles differently, so
that digests carry its version and are compared only within it.
"""

import dis
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from types import CodeType, FunctionType, MethodType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stimulus_moo._engine.digest import digest, digest_of
from stimulus_moo._engine.module_tree import MODULE_NAMES
from stimulus_moo.data.batches import tensors
from stimulus_moo.data.sources import Columns, Selected, Source
from stimulus_moo.state import Stateful

_PLAIN = bool | int | float | complex | str | bytes | None | torch.dtype | torch.device
_DEPTH = 5  # of nested objects
_VERSION = f"python {sys.version_info.major}.{sys.version_info.minor}"


def describe(value: Any, depth: int = _DEPTH) -> str:
    """Return a description; objects that cannot be looked into are described by their type.

    >>> describe([1, 2.5, None]), describe(torch.zeros(2)) == describe(torch.ones(2))
    ('[1, 2.5, None]', False)
    >>> describe(lambda t: 0.5 ** t) == describe(lambda t: 0.9 ** t)
    False
    """
    if isinstance(value, _PLAIN):
        return repr(value)
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    if depth == 0:
        return kind
    inner = depth - 1
    if isinstance(value, np.ndarray) and value.dtype.kind in "biufc":
        value = torch.from_numpy(np.ascontiguousarray(value))
    if isinstance(value, Tensor):
        return f"{list(value.shape)} of {value.dtype} {digest_of(value)}"
    if isinstance(value, type):
        return f"{value.__module__}.{value.__qualname__}"
    if isinstance(value, set | frozenset):
        return f"{{{', '.join(sorted(describe(item, inner) for item in value))}}}"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{describe(key, 1)}: {describe(item, inner)}' for key, item in value.items())}}}"
    if isinstance(value, Sequence):
        return f"[{', '.join(describe(item, inner) for item in value)}]"
    if isinstance(value, partial):
        return f"{describe(value.func, inner)} with {describe(value.args, inner)} {describe(value.keywords, inner)}"
    if isinstance(value, MethodType | FunctionType):
        function: Any = value.__func__ if isinstance(value, MethodType) else value
        code = _code_of(function, {}) if isinstance(function, FunctionType) else kind
        return f"{value.__qualname__} ({_VERSION}: {digest(code.encode())})"
    if isinstance(value, torch.nn.Module):
        parts = {name or "it": _attributes(part) for name, part in value.named_modules()}
        return f"{kind} {describe(parts, inner)}"
    return f"{kind} {describe(_attributes(value), inner)}" if hasattr(value, "__dict__") else kind


def describe_optimizer(optimizer: torch.optim.Optimizer) -> str:
    """Return the kind of an optimizer and the options of its groups."""
    groups = [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups]
    sizes = [len(group["params"]) for group in optimizer.param_groups]
    return f"{type(optimizer).__qualname__} {describe(groups)} for {sizes} parameters"


def describe_scheduler(scheduler: Any) -> str:
    """Return the kind of a scheduler, its numbers and its functions."""
    parts = {key: value for key, value in vars(scheduler).items() if key in ("lr_lambdas", "_schedulers")}
    return f"{type(scheduler).__qualname__} {describe(scheduler.state_dict())} {describe(parts)}"


def describe_data(source: Source) -> str:
    """Return the shapes and types of tensors in memory, with a digest of up to 64 samples; else the kind of source."""
    if isinstance(source, Selected):
        return f"{describe(source.indices)} of {describe_data(source.source)}"
    if not isinstance(source, Columns):
        return type(source).__name__
    some = torch.linspace(0, len(source) - 1, min(64, len(source))).long()
    shapes = [f"{list(leaf.shape)} of {leaf.dtype}" for leaf in tensors(source.columns)]
    return f"{', '.join(shapes)} {digest(describe(source.take(some)).encode())}"


def same(saved: Any, own: Any) -> bool:
    """Return whether two descriptions agree; digests of code made by another version of Python are not compared."""
    if saved == own:
        return True
    both = isinstance(saved, str) and isinstance(own, str)
    return both and _VERSION in own and "(python " in saved and _VERSION not in saved


def shortened(saved: Any, own: Any) -> tuple[str, str]:
    """Return two different values for a message; of long texts the part from a little before they differ.

    >>> shortened("SGD " + 50 * "." + "lr 0.1", "SGD " + 50 * "." + "lr 0.2")
    ("'SGD ... ........lr 0.1'", "'SGD ... ........lr 0.2'")
    """
    if not isinstance(saved, str) or not isinstance(own, str) or max(len(saved), len(own)) < 50:
        return repr(saved), repr(own)
    equal = next((i for i, (a, b) in enumerate(zip(saved, own, strict=False)) if a != b), min(len(saved), len(own)))
    start = max(equal - 12, 0)
    first, second = (
        f"{text.split()[0]} ... {text[start : start + 60]}{' ...' if len(text) > start + 60 else ''}"
        if start > len(text.split()[0])
        else f"{text[:80]}{' ...' if len(text) > 80 else ''}"
        for text in (saved, own)
    )
    return repr(first), repr(second)


def _code_of(function: FunctionType, seen: dict[int, int]) -> str:
    """Return the code of a function and, of the same module, of those it calls, with the plain values it uses."""
    if id(function) in seen:
        return f"function {seen[id(function)]}"
    seen[id(function)] = len(seen)
    code = function.__code__
    cells = dict(zip(code.co_freevars, function.__closure__ or (), strict=True))
    outside = {name: function.__globals__.get(name) for name in sorted(_names(code))}
    outside |= {name: cell.cell_contents for name, cell in cells.items() if not _stores(code, name) and _filled(cell)}
    used = []
    for name, value in outside.items():
        if isinstance(value, FunctionType) and value.__module__ == function.__module__:
            used.append(f"{name}: {_code_of(value, seen)}")
        elif isinstance(value, _PLAIN | tuple | partial | FunctionType) or _is_constant(value):
            used.append(f"{name}: {describe(value, 2)}")
    defaults = describe([function.__defaults__, function.__kwdefaults__], 3)
    return f"{_instructions(code, function.__doc__)} {defaults} {used}"


def _instructions(code: CodeType, doc: str | None) -> str:
    constants = [
        _instructions(one, None) if isinstance(one, CodeType) else describe(one)
        for one in code.co_consts
        if one is None or one != doc
    ]
    return f"{code.co_code.hex()} {constants} {code.co_names}"


def _names(code: CodeType) -> set[str]:
    inner = [_names(one) for one in code.co_consts if isinstance(one, CodeType)]
    return set(code.co_names).union(*inner)


def _stores(code: CodeType, name: str) -> bool:
    """Return whether a function changes a variable of its surroundings, such as a counter."""
    inner = [one for one in code.co_consts if isinstance(one, CodeType)]
    own = any(step.opname == "STORE_DEREF" and step.argval == name for step in dis.get_instructions(code))
    return own or any(_stores(one, name) for one in inner)


def _is_constant(value: Any) -> bool:
    return isinstance(value, Tensor) and not value.requires_grad


def _filled(cell: Any) -> bool:
    try:
        return cell.cell_contents is not cell
    except ValueError:  # a variable that is not set yet
        return False


def _attributes(value: Any) -> dict[str, Any]:
    """Return the options of an object: its attributes, without state that a checkpoint holds."""
    hidden = MODULE_NAMES if isinstance(value, torch.nn.Module) else frozenset()
    if isinstance(value, Stateful):
        hidden |= {name for name in value.state_names if not isinstance(getattr(value, name), Stateful)}
    return {name: item for name, item in vars(value).items() if name not in hidden}
