"""Checksum of the library's core: kept runs of its methods are repeated when it has changed."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

import stimulus_moo

#: rooms and files that do not determine a run on one process
_BESIDE = {"lab", "diagnosis", "distributed", "fronts", "ranking", "integrations", "metrics.py", "__init__.py"}


@cache
def core_checksum() -> str:
    """Return the checksum of all files that determine a run."""
    folder = Path(stimulus_moo.__file__).parent
    files = sorted(path for path in folder.rglob("*.py") if path.relative_to(folder).parts[0] not in _BESIDE)
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()
