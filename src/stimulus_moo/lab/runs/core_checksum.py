"""Checksum of the library's core: kept runs of its methods are repeated when it has changed."""

from __future__ import annotations

import ast
import hashlib
from functools import cache
from pathlib import Path

import stimulus_moo

#: rooms and files that do not determine a run on one process
_BESIDE = {"lab", "diagnosis", "distributed", "fronts", "ranking", "integrations", "metrics.py", "__init__.py"}
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


@cache
def core_checksum() -> str:
    """Return the checksum of the code of all files that determine a run; comments, docstrings and format do not."""
    folder = Path(stimulus_moo.__file__).parent
    files = sorted(path for path in folder.rglob("*.py") if path.relative_to(folder).parts[0] not in _BESIDE)
    return hashlib.sha256("\n".join(_code(path.read_text(encoding="utf-8")) for path in files).encode()).hexdigest()


def _code(source: str) -> str:
    """Return the syntax tree as text, without docstrings.

    >>> _code("x = 1  # one") == _code("x  =  1"), _code("x = 1") == _code("x = 2")
    (True, False)
    """
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, _DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            node.body = node.body[1:]
    return ast.dump(tree)
