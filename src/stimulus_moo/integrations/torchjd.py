"""TorchJD's weightings by name: ``fit(..., weighting="upgrad")``."""

import importlib
from functools import partial
from typing import Any

from stimulus_moo.errors import MissingDependency
from stimulus_moo.weightings.names import WEIGHTINGS

#: The weightings of TorchJD that need no argument, by the name that ``weighting=`` takes.
NAMES = {
    "upgrad": "UPGradWeighting",
    "dualproj": "DualProjWeighting",
    "mgda": "MGDAWeighting",
    "pcgrad": "PCGradWeighting",
    "imtl-g": "IMTLGWeighting",
    "aligned-mtl": "AlignedMTLWeighting",
}


def build(name: str) -> Any:
    """Return a new weighting of TorchJD.

    Args:
        name: a key of ``NAMES``.

    Raises:
        MissingDependency: TorchJD, or a solver that the weighting needs, is not installed.
    """
    try:
        return getattr(importlib.import_module("torchjd.aggregation"), NAMES[name])()
    except ImportError as error:
        install = "pip install torchjd" if error.name == "torchjd" else str(error)
        raise MissingDependency(f"weighting {name!r} needs TorchJD: {install}") from error


def register() -> None:
    """Add the names to ``WEIGHTINGS``."""
    for name in NAMES:
        WEIGHTINGS.setdefault(name, partial(build, name))
