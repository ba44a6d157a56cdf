"""Texts without local paths: a report is shown to others."""

from __future__ import annotations

import re
from typing import Any

# an absolute path, or one from the home directory; not the inside of a word, a URL or a tag
_PATH = re.compile(r"(?<![\w.:/\\<~])(?:~|[A-Za-z]:)?(?:[/\\][^\s/\\,;:'\"<>|()]+)+[/\\]?")


def without_paths(value: Any) -> Any:
    """Return a JSON value in which every local path in a text is reduced to its last part.

    >>> without_paths({"data": "IDX files in /home/ann/data/mnist, paired with seed 0", "rates": "1/T"})
    {'data': 'IDX files in mnist, paired with seed 0', 'rates': '1/T'}
    """
    if isinstance(value, str):
        return _PATH.sub(lambda found: re.split(r"[/\\]", found[0].rstrip("/\\"))[-1], value)
    if isinstance(value, dict):
        return {key: without_paths(item) for key, item in value.items()}
    return [without_paths(item) for item in value] if isinstance(value, list) else value
