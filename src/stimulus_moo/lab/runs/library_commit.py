"""The commit that measured figures belong to: pages and run directories name it."""

from __future__ import annotations

import subprocess
from functools import cache
from pathlib import Path

import stimulus_moo

#: the library without its lab, and without the list of public names, which has the version number
_PATHS = ("--", ".", ":(exclude)lab", ":(exclude)__init__.py")


@cache
def library_commit() -> str | None:
    """Return the last commit that changed the library, with a note if it was changed since.

    Commits of pages, tests and the lab leave it as it is, so that runs of several days can belong to one commit. None
    where the library is installed without its git repository.
    """
    commit = _git("log", "-1", "--format=%h", "--abbrev=7", *_PATHS)
    changed = commit and _git("status", "--porcelain", *_PATHS)
    return f"{commit} with changes" if changed else commit or None


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(Path(stimulus_moo.__file__).parent), *arguments]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""
