"""Objects with a state of plain values, which ``torch.load(weights_only=True)`` can read."""

import copy
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from stimulus_moo.errors import StateMismatch


class Stateful:
    """An object whose state is the attributes in ``state_names``.

    These can be numbers, strings, lists, dicts, tensors, ``torch.Generator`` and other ``Stateful`` objects. Those in
    ``optional_names``, which gives their type, can also be None.
    """

    state_names: ClassVar[tuple[str, ...]] = ()
    optional_names: ClassVar[Mapping[str, type]] = {}

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
        fits, needed = _alike(value, saved), f"a random state of {len(saved)} bytes"
    elif isinstance(current, Tensor):
        fits, needed = _alike(value, current), f"{_describe(current)} and {current.dtype}"
    elif isinstance(current, list | dict):
        fits, needed = isinstance(value, type(current)), f"a {type(current).__name__}"
    elif isinstance(current, int | float):
        fits, needed = isinstance(value, int | float), "a number"
    if not fits:
        raise StateMismatch(f"{path} must be {needed}, found {_describe(value)}")


def _alike(value: Any, tensor: Tensor) -> bool:
    return isinstance(value, Tensor) and value.shape == tensor.shape and value.dtype == tensor.dtype


def _describe(value: Any) -> str:
    return f"a tensor of shape {list(value.shape)}" if isinstance(value, Tensor) else repr(value)
