"""Objects with a state of plain values, which ``torch.load(weights_only=True)`` can read."""

import copy
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from stimulus_moo.errors import StateMismatch

_IMMUTABLE = {int, float, bool, str, type(None)}


class Stateful:
    """An object whose state is the attributes in ``state_names``.

    These can be numbers, strings, lists, dicts, tensors, ``torch.Generator`` and other ``Stateful`` objects. Those in
    ``optional_names``, which gives their type, can also be None. A state is refused if one of ``count_names`` is not an
    integer of at least 0, or one of ``amount_names``, such as norms and variances, is negative.
    """

    state_names: ClassVar[tuple[str, ...]] = ()
    optional_names: ClassVar[Mapping[str, type]] = {}
    count_names: ClassVar[tuple[str, ...]] = ()
    amount_names: ClassVar[tuple[str, ...]] = ()

    @property
    def kind(self) -> str:
        """The kind of object; a state can only be loaded into an object of the same kind."""
        return type(self).__name__

    def state_dict(self) -> dict[str, Any]:
        """Return a copy of the state."""
        return {"kind": self.kind, **{name: _read(getattr(self, name)) for name in self.state_names}}

    def has_state(self) -> bool:
        """Return whether the object has anything to save."""
        values = (getattr(self, name) for name in self.state_names)
        return type(self).state_dict is not Stateful.state_dict or any(
            not isinstance(value, Stateful) or value.has_state() for value in values
        )

    def check_state(self, state: Any, path: str = "") -> None:
        """Raise StateMismatch, which names the entry, if ``state`` does not fit."""
        where = path or self.kind
        if not isinstance(state, dict):
            raise StateMismatch(f"the state of {where} must be a dict, found {type(state).__name__}")
        if state.get("kind") != self.kind:
            raise StateMismatch(
                f"the state of {where} is of kind {state.get('kind')!r}, this object is a {self.kind}; load it into an "
                "object of the kind it was saved from"
            )
        expected, found = {"kind", *self.state_names}, set(state)
        if expected != found:
            missing, unknown = sorted(expected - found), sorted(map(str, found - expected))
            raise StateMismatch(f"the state of {where} has missing entries {missing} and unknown entries {unknown}")
        for name in self.state_names:
            _check(getattr(self, name), state[name], f"{where}.{name}", self.optional_names.get(name))
        for name in self.count_names:
            if not isinstance(state[name], int) or state[name] < 0:
                raise StateMismatch(f"{where}.{name} must be 0 or a positive integer, found {state[name]!r}")
        for name in self.amount_names:
            if state[name] is not None and state[name] < 0:
                raise StateMismatch(f"{where}.{name} must be a number of at least 0, found {state[name]!r}")

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a state saved by an object of the same kind.

        Raises:
            StateMismatch: the state does not fit; nothing has changed then.
        """
        self.check_state(state)
        for name in self.state_names:
            current = getattr(self, name)
            if isinstance(current, Stateful):
                current.load_state_dict(state[name])
            elif isinstance(current, torch.Generator):
                current.set_state(state[name])
            else:
                setattr(self, name, _read(state[name]))


def _read(value: Any) -> Any:
    """Return a copy; numbers and lists of them, which are copied before every step, without ``copy.deepcopy``."""
    if type(value) in _IMMUTABLE:
        return value
    if type(value) is list:
        return [_read(entry) for entry in value]
    if isinstance(value, Stateful):
        return value.state_dict()
    if isinstance(value, torch.Generator):
        return value.get_state()
    if isinstance(value, Tensor):
        return value.detach().clone()
    return copy.deepcopy(value)


def _check(current: Any, value: Any, path: str, optional: type | None) -> None:
    fits, needed = True, ""
    if optional is not None and (value is None or current is None):
        fits, needed = isinstance(value, optional | None), f"a {optional.__name__} or None"
    elif isinstance(current, Stateful):
        current.check_state(value, path)
    elif isinstance(current, torch.Generator):
        saved = current.get_state()
        fits, needed = alike(value, saved), f"a random state of {len(saved)} bytes"
    elif isinstance(current, Tensor):
        fits, needed = alike(value, current), short_text(current)
    elif isinstance(current, list | dict | bool | str):
        fits, needed = isinstance(value, type(current)), f"a {type(current).__name__}"
    elif isinstance(current, int | float):
        fits, needed = isinstance(value, int | float) and not isinstance(value, bool), "a number"
    if not fits:
        raise StateMismatch(f"{path} must be {needed}, found {short_text(value)}")


def check_tensors(found: Any, own: Sequence[Tensor], path: str) -> None:
    """Raise StateMismatch unless a saved list holds tensors with the shapes and dtypes of ``own``."""
    if not isinstance(found, list) or len(found) != len(own) or not all(map(alike, found, own)):
        needed = [(list(tensor.shape), tensor.dtype) for tensor in own]
        saved = [short_text(value) for value in found] if isinstance(found, list) else short_text(found)
        raise StateMismatch(f"{path} must have the shapes and dtypes {needed}, found {saved}")


def check_numbers(found: Any, path: str, count: int | None = None, *, low: float = 0.0) -> None:
    """Raise StateMismatch unless a saved list holds numbers of at least ``low``, ``count`` of them if it is given."""
    numbers = isinstance(found, list) and all(isinstance(x, int | float) and not isinstance(x, bool) for x in found)
    if not numbers or not all(x >= low for x in found) or count not in (None, len(found)):
        needed = "numbers" if count is None else f"{count} numbers"
        raise StateMismatch(f"{path} must be a list of {needed} of at least {low:g}, found {short_text(found)}")


def alike(value: Any, tensor: Tensor) -> bool:
    """Return whether a saved value is a tensor of the same shape and dtype."""
    return isinstance(value, Tensor) and value.shape == tensor.shape and value.dtype == tensor.dtype


def short_text(value: Any) -> str:
    """Return a short text for an unexpected value."""
    if isinstance(value, Tensor):
        return f"a tensor of shape {list(value.shape)} and {value.dtype}"
    text = repr(value)
    return text if len(text) <= 200 else f"a {type(value).__name__}"
