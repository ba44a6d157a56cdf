"""State that survives: what decides the future of an object, as plain values that load with ``weights_only=True``."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from stimulus_moo.errors import StateMismatch


class Stateful:
    """An object whose changing attributes are named in ``state_names``.

    ``state_dict`` returns copies; ``load_state_dict`` checks the whole state before it changes anything, so a refused
    state leaves the object as it was. Attributes may be numbers, strings, tensors, ``torch.Generator``, other
    ``Stateful`` objects and, where ``optional_names`` says of what type they are otherwise, None.
    """

    state_names: ClassVar[tuple[str, ...]] = ()
    optional_names: ClassVar[Mapping[str, type]] = {}

    @property
    def kind(self) -> str:
        """What the state says it belongs to; only an object of the same kind takes it over."""
        return type(self).__name__

    def state_dict(self) -> dict[str, Any]:
        """Return everything that decides the object's future, as copies."""
        state: dict[str, Any] = {"kind": self.kind}
        for name in self.state_names:
            state[name] = _read(getattr(self, name))
        return state

    def has_state(self) -> bool:
        """Return whether anything about the object can change; an object without a state need not be saved."""
        if type(self).state_dict is not Stateful.state_dict:
            return True
        values = (getattr(self, name) for name in self.state_names)
        return any(value.has_state() if isinstance(value, Stateful) else True for value in values)

    def check_state(self, state: Any, path: str = "") -> None:
        """Raise StateMismatch if ``state`` does not fit, naming the entry."""
        where = path or self.kind
        if not isinstance(state, dict):
            raise StateMismatch(f"the state of {where} must be a dict, found {type(state).__name__}")
        if state.get("kind") != self.kind:
            raise StateMismatch(
                f"the state of {where} is of kind {state.get('kind')!r}, this object is a {self.kind}; "
                "build the object the state was saved from"
            )
        expected, found = {"kind", *self.state_names}, set(state)
        if expected != found:
            raise StateMismatch(
                f"the state of {where} has missing entries {sorted(expected - found)} "
                f"and unknown entries {sorted(map(str, found - expected))}"
            )
        for name in self.state_names:
            _check(getattr(self, name), state[name], f"{where}.{name}", self.optional_names.get(name))

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over a state saved by an object of the same kind.

        Raises:
            StateMismatch: the state belongs to another kind of object; nothing has changed then.
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
    if optional is not None and (value is None or current is None):
        if not isinstance(value, optional | None):
            raise StateMismatch(f"{path} must be a {optional.__name__} or None, found {_describe(value)}")
    elif isinstance(current, Stateful):
        current.check_state(value, path)
    elif isinstance(current, torch.Generator):
        size = current.get_state().shape
        if not isinstance(value, Tensor) or value.dtype != torch.uint8 or value.shape != size:
            raise StateMismatch(f"{path} must be a random state of {size[0]} bytes, found {_describe(value)}")
    elif isinstance(current, Tensor):
        if not isinstance(value, Tensor) or value.shape != current.shape or value.dtype != current.dtype:
            needed = f"{_describe(current)} and {current.dtype}"
            raise StateMismatch(f"{path} must be {needed}, found {_describe(value)}")
    elif isinstance(current, list | dict) and not isinstance(value, type(current)):
        raise StateMismatch(f"{path} must be a {type(current).__name__}, found {_describe(value)}")
    elif isinstance(current, int | float) and not isinstance(value, int | float):
        raise StateMismatch(f"{path} must be a number, found {_describe(value)}")


def _describe(value: Any) -> str:
    return f"a tensor of shape {list(value.shape)}" if isinstance(value, Tensor) else repr(value)
