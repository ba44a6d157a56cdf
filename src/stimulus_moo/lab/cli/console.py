"""Consoles of the command line: results go to standard output, everything else to standard error."""

from __future__ import annotations

from rich.console import Console

#: Width of tables where standard output is not a terminal, so that each row stays on one line of a log.
LOG_WIDTH = 160


def stderr() -> Console:
    """Return the console for errors, warnings and progress."""
    return Console(stderr=True)


def stdout() -> Console:
    """Return the console for results."""
    console = Console()
    return console if console.is_terminal else Console(width=LOG_WIDTH)
