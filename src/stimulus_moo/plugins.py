"""Plug-ins: Python files and installed packages that add methods, weightings and experiments to the tables.

A plug-in writes to the tables when it is loaded: ``METHODS`` and ``WEIGHTINGS`` of this package, and ``EXPERIMENTS`` of
``stimulus_moo.lab.experiments``.
"""

import runpy
import warnings
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

from stimulus_moo.errors import InvalidOption, StimulusWarning

#: The group of entry points of installed plug-ins. The value names a module, or a function without arguments.
GROUP = "stimulus_moo.plugins"

#: What comes with this package and is loaded in the same way.
BUILT_IN = (EntryPoint("torchjd", "stimulus_moo.integrations.torchjd:register", GROUP),)

_loaded: set[str] = set()


def load_installed() -> None:
    """Load the plug-ins of installed packages, each once; one that fails is left out with a warning."""
    for entry in (*BUILT_IN, *entry_points(group=GROUP)):
        if entry.value in _loaded:
            continue
        _loaded.add(entry.value)
        try:
            found = entry.load()
            if callable(found):
                found()
        except Exception as error:
            problem = (
                f"the plug-in {entry.name} ({entry.value}) failed and is left out: {type(error).__name__}: {error}"
            )
            warnings.warn(problem, StimulusWarning, stacklevel=3)


def load_file(path: str | Path) -> None:
    """Run a Python file as a plug-in.

    Raises:
        InvalidOption: there is no such file, or it fails; the message has its error.
    """
    if not Path(path).is_file():
        raise InvalidOption(f"plugin must be a Python file, found {str(path)!r}, which does not exist")
    try:
        runpy.run_path(str(path), run_name="stimulus_moo_plugin")
    except Exception as error:
        raise InvalidOption(f"plugin {str(path)!r} failed with {type(error).__name__}: {error}") from error
