"""Lazy imports of optional packages."""

from __future__ import annotations

import importlib
from typing import Any

from stimulus_moo.errors import MissingDependency


def optional(module: str) -> Any:
    """Import an optional package by its module name.

    Returns:
        The module.

    Raises:
        MissingDependency: the package is not installed; the message has the install command.

    >>> optional("json").dumps([1])
    '[1]'
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise MissingDependency(
            f"this part of the lab needs the package {package!r}: pip install 'stimulus-moo[lab]'"
        ) from error
