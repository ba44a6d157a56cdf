"""Names of 0.1 that still work in this release, each with one DeprecationWarning."""

import functools
import importlib
import sys
import warnings
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

Kind = TypeVar("Kind")

AUTO_METHOD = "filtered-m"  #: 0.1 called this method "auto"
_UNTIL = "is deprecated and will be removed in 0.3"


def old_names(module: str, names: Mapping[str, tuple[str, str]]) -> Callable[[str], Any]:
    """Return a ``__getattr__`` for the module of that name, which finds its old names.

    ``names`` has, by old name, what it stands for, as ``"module:name"``, and what to write instead.
    """

    def find(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        target, advice = names[name]
        warnings.warn(f"{module}.{name} {_UNTIL}: {advice}", DeprecationWarning, stacklevel=2)
        place, _, new = target.partition(":")
        value = getattr(importlib.import_module(place), new)
        setattr(sys.modules[module], name, value)  # found from now on, without a second warning
        return value

    return find


def old_field(name: str, value: Any, advice: str) -> Callable[[type[Kind]], type[Kind]]:
    """Return a decorator for a dataclass that once had a field: it may still be given, and reads as ``value``."""

    def decorate(kind: type[Kind]) -> type[Kind]:
        init: Callable[..., None] = kind.__init__

        @functools.cache
        def warn() -> None:
            message = f"{kind.__name__}.{name} {_UNTIL}: {advice}"
            warnings.warn(message, DeprecationWarning, stacklevel=3)

        @functools.wraps(init)
        def initialise(self: Kind, *args: Any, **options: Any) -> None:
            if name in options:
                del options[name]
                warn()
            init(self, *args, **options)

        def read(self: Kind) -> Any:
            warn()
            return value

        setattr(kind, "__init__", initialise)  # noqa: B010  # mypy keeps the fields of the dataclass
        setattr(kind, name, property(read))
        return kind

    return decorate
