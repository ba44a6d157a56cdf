"""Checks of a checkpoint's parts that have no ``check_state`` of their own, before anything is loaded.

A checkpoint with a right checksum can still hold a wrong type, if another program wrote it. The states of the model,
the optimizer and the scheduler are compared with their own ``state_dict``: the same structure, types, shapes and
dtypes. Values of the right type are not judged, except that counts and rates are not negative.
"""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from stimulus_moo.errors import StateMismatch
from stimulus_moo.metrics import Measurement
from stimulus_moo.optim import HeavyBall
from stimulus_moo.state import alike, short_text

_PLAIN = bool | int | float | str | None
#: Options of optimizers that are never negative.
_RATES = {"lr", "initial_lr", "momentum", "weight_decay", "dampening", "eps", "betas", "alpha"}
#: Entries of an optimizer's state that are one number per parameter; all others have the parameter's shape.
_SCALARS = {"step", "eta", "mu", "mu_product"}
#: Optimizers of torch whose state has entries of other shapes.
_UNEVEN = {"Adafactor", "LBFGS", "Muon", "SparseAdam"}


def check_parts(state: Any, settings: Mapping[str, Any], parts: Mapping[str, Any]) -> None:
    """Raise StateMismatch, naming the entry, if a part of a checkpoint has a wrong structure or type.

    Args:
        state: the content of a checkpoint.
        settings: the settings of this run, whose values are compared elsewhere.
        parts: the parts of this run by name, as in the state.
    """
    found: Any = state.get("settings") if isinstance(state, dict) else None
    _require(isinstance(found, dict), "settings", "a dict", found)
    for name, value in settings.items():
        right = isinstance(found.get(name), _PLAIN) and isinstance(found.get(name), bool) == isinstance(value, bool)
        _require(right or name not in found, f"settings.{name}", repr(value), found.get(name))
    for name in ("step", "stream"):
        check_count(state.get(name), name)
    if parts.get("model") is not None:
        _check_model(parts["model"].state_dict(), state.get("model"))
    if isinstance(parts.get("optimizer"), Optimizer):
        _check_optimizer(parts["optimizer"], state.get("optimizer"))
    scheduler = parts.get("scheduler")
    if isinstance(scheduler, LRScheduler) and _of_torch(scheduler) and state.get("scheduler") is not None:
        _check_like(scheduler.state_dict(), state["scheduler"], "scheduler")
    _check_random(state.get("random"), "random")
    _check_objectives(state)


def measurement_of(state: Any) -> Measurement | None:
    """Return the saved measurement; raise StateMismatch unless it has a number per objective."""
    if state is None:
        return None
    found = Measurement(**state)
    amounts = [found.stationarity, *found.weights]
    right = all(isinstance(number, float) for number in (*found.losses, *amounts)) and type(found.samples) is int
    if (
        not right
        or len(found.losses) != len(found.weights)
        or min(*amounts, found.samples - 1, len(found.losses) - 1) < 0
    ):
        raise StateMismatch(f"the checkpoint's measured must have a number per objective, found {found}")
    return found


def check_count(value: Any, path: str) -> None:
    """Raise StateMismatch unless a value is an integer of at least 0, and not a bool."""
    right = isinstance(value, int) and not isinstance(value, bool) and value >= 0
    _require(right, path, "0 or a positive integer", value)


def check_seconds(value: Any) -> None:
    """Raise StateMismatch unless a value is a finite float of at least 0."""
    _require(isinstance(value, float) and 0.0 <= value < math.inf, "seconds", "a number of at least 0", value)


def _require(right: bool, path: str, needed: str, found: Any) -> None:
    if not right:
        raise StateMismatch(f"the checkpoint's {path} must be {needed}, found {short_text(found)}; use another folder")


def _of_torch(part: Any) -> bool:
    return type(part).__module__.startswith("torch.optim")


def _check_tensor(own: Tensor, found: Any, path: str) -> None:
    _require(alike(found, own), path, short_text(own), found)


def _check_model(own: Mapping[str, Any], found: Any) -> None:
    """Check the tensors; missing and unknown entries are left to the model's own ``load_state_dict``."""
    _require(isinstance(found, dict), "model", "a dict", found)
    for name, value in own.items():
        if name in found and isinstance(value, Tensor):
            _check_tensor(value, found[name], f"model[{name!r}]")


def _check_optimizer(optimizer: Optimizer, found: Any) -> None:
    own = optimizer.state_dict()
    right = isinstance(found, dict) and isinstance(found.get("param_groups"), list)
    _require(right and isinstance(found.get("state"), dict), "optimizer", "a dict with state and param_groups", found)
    groups, path = found["param_groups"], "optimizer.param_groups"
    _require(len(groups) == len(own["param_groups"]), path, f"a list of {len(own['param_groups'])} groups", groups)
    for i, (mine, group) in enumerate(zip(own["param_groups"], groups, strict=True)):
        _require(isinstance(group, dict) and "params" in group, f"{path}[{i}]", "a dict with params", group)
        for name, value in mine.items():
            if name in group:
                _check_like(value, group[name], f"{path}[{i}].{name}", rate=name in _RATES)
        right = list(group["params"]) == mine["params"]
        _require(right, f"{path}[{i}].params", repr(mine["params"]), group["params"])
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    even = isinstance(optimizer, HeavyBall) or (_of_torch(optimizer) and type(optimizer).__name__ not in _UNEVEN)
    for key, entries in found["state"].items():
        path = f"optimizer.state[{key!r}]"
        right = isinstance(key, int) and not isinstance(key, bool) and 0 <= key < len(parameters)
        _require(right or not even, path, f"the state of one of {len(parameters)} parameters", key)
        _require(isinstance(entries, dict), path, "a dict", entries)
        for name, value in entries.items() if even else ():
            if value is not None or name != "momentum_buffer":  # None before the first step of torch's SGD
                like = torch.zeros(()) if name in _SCALARS else parameters[key]
                _check_tensor(like, value, f"{path}[{name!r}]")


def _check_like(own: Any, found: Any, path: str, *, rate: bool = False) -> None:
    """Check that a value has the structure and the types of this run's own value."""
    if isinstance(own, Tensor):
        _check_tensor(own, found, path)
    elif isinstance(own, dict):
        right = isinstance(found, dict) and set(found) == set(own)
        _require(right, path, f"a dict with {sorted(map(str, own))}", found)
        for name, value in own.items():
            if name == "lr_lambdas":  # the attributes of a user's object, which may have any types
                value = found[name] if isinstance(found[name], list) else value
            _check_like(value, found[name], f"{path}.{name}", rate=name != "best")
    elif isinstance(own, list | tuple):
        _require(isinstance(found, type(own)) and len(found) == len(own), path, f"like {own!r}", found)
        for i, (mine, value) in enumerate(zip(own, found, strict=True)):
            _check_like(mine, value, f"{path}[{i}]", rate=rate)
    elif isinstance(own, int | float) and not isinstance(own, bool):
        whole = (
            isinstance(own, int) and path.startswith("scheduler.") and path not in ("scheduler.T_cur", "scheduler.T_i")
        )
        right = isinstance(found, int if whole else int | float) and not isinstance(found, bool)
        _require(right, path, f"a number like {own!r}", found)
        _require(not rate or own < 0 or found >= 0, path, "a number of at least 0", found)
    else:
        _require(type(found) is type(own), path, f"of the type of {own!r}", found)


def _check_random(found: Any, path: str) -> None:
    _require(isinstance(found, dict), path, "a dict", found)
    _check_tensor(torch.get_rng_state(), found.get("cpu"), f"{path}.cpu")
    others, devices = found.get("others", []), found.get("accelerator", [])
    _require(isinstance(others, list), f"{path}.others", "a list", others)
    right = isinstance(devices, list) and all(isinstance(t, Tensor) and t.dtype == torch.uint8 for t in devices)
    _require(right, f"{path}.accelerator", "a list of random states", devices)
    for rank, other in enumerate(others, 1):
        _check_random(other, f"{path} of process {rank}")


def _check_objectives(state: Mapping[str, Any]) -> None:
    """Check that the guard and the history have one entry per objective; their own checks cannot know the number."""
    objectives = _entry(state, "multigradient", "objectives")
    level, losses = _entry(state, "guard", "rollback", "level"), _entry(state, "history", "columns", "losses")
    if isinstance(level, list):
        _require(len(level) == objectives, "guard.rollback.level", f"a list of {objectives} numbers", level)
    if isinstance(losses, Tensor) and losses.dim() == 2:
        needed = (state["step"], objectives)
        _require(losses.shape == needed, "history.columns.losses", f"a tensor of shape {list(needed)}", losses)


def _entry(state: Any, *names: str) -> Any:
    for name in names:
        state = state.get(name) if isinstance(state, dict) else None
    return state
