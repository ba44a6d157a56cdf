"""Cache of computed arrays: written atomically, recomputed if damaged, never unpickled."""

from __future__ import annotations

import hashlib
import logging
import zipfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stimulus_moo.lab.data.folders import cache_folder
from stimulus_moo.training.files import write_whole

Arrays = Mapping[str, NDArray[Any]]
Layout = Mapping[str, tuple[str, tuple[int, ...]]]
_logger = logging.getLogger(__name__)


def cache_path(name: str, *parts: object) -> Path:
    """Return the cache file of a result that depends only on ``parts``.

    Args:
        name: prefix of the file name.
        parts: all inputs of the result: content checksums, seed, sizes.
    """
    key = hashlib.sha256(repr(parts).encode()).hexdigest()[:32]
    return cache_folder() / "derived" / f"{name}-{key}.npz"


def load_or_build(path: Path, layout: Layout, build: Callable[[], Arrays]) -> Arrays:
    """Return the arrays stored at ``path``, or build and store them.

    Args:
        path: see ``cache_path``.
        layout: dtype and shape of each array; a file with another layout is recomputed.
        build: function that computes the arrays.

    Returns:
        The arrays by name, even if the cache cannot be written.
    """
    arrays = _load(path, layout)
    if arrays is None:
        arrays = build()
        try:
            _store(path, arrays)
        except OSError as error:
            _logger.warning("%s: not cached (%s)", path, error)
    return arrays


def _load(path: Path, layout: Layout) -> Arrays | None:
    if not path.is_file():
        return None
    try:
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in layout}
    except (
        OSError,
        ValueError,
        KeyError,
        EOFError,
        SyntaxError,
        MemoryError,
        zipfile.BadZipFile,
        zlib.error,
    ) as error:
        _logger.warning("%s: damaged, computing it again (%s)", path, error)
        return None
    if any(_layout(arrays[name]) != wanted for name, wanted in layout.items()):
        _logger.warning("%s: unexpected content, computing it again", path)
        return None
    return arrays


def _layout(found: Any) -> tuple[str, tuple[int, ...]] | None:
    """Return dtype and shape, or None for a member of the archive that is not an array."""
    return (str(found.dtype), found.shape) if isinstance(found, np.ndarray) else None


def _store(path: Path, arrays: Arrays) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, lambda file: np.savez(file, **dict(arrays)))  # type: ignore[arg-type]
