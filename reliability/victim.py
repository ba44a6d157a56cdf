"""The command line in a process that kills itself: ``python -m reliability.victim N run digits ...``.

Before the N-th operation that changes a disk, half of what it would do is done and the process ends by SIGKILL, as it
would when the power fails. N = 0 only counts: the number of operations is the last line on standard output.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

#: what the library changes a disk with; files that are open are flushed before ``os.fsync``
OPERATIONS = ("write", "fsync", "replace", "unlink", "ftruncate", "mkdir")


class Saboteur:
    """Counts the operations, and strikes at one of them."""

    def __init__(self, strike_at: int) -> None:
        self.strike_at, self.count = strike_at, 0

    def take_over(self) -> None:
        """Put itself in the place of the operating system's functions."""
        for name in OPERATIONS:
            setattr(os, name, self._watched(name, getattr(os, name)))

    def _watched(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def operation(*arguments: Any, **options: Any) -> Any:
            self.count += 1
            if self.count == self.strike_at:
                _half(name, real, arguments)
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*arguments, **options)

        return operation


def _half(name: str, real: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    """Do what a power failure may leave of an operation."""
    if name == "write":
        real(arguments[0], arguments[1][: len(arguments[1]) // 2])
    elif name == "fsync":  # what was not yet on the disk is lost: half of the file
        with suppress(OSError):  # a folder
            os.truncate(arguments[0], os.fstat(arguments[0]).st_size // 2)
    elif name in ("replace", "unlink") and os.getpid() % 2:  # done, or not
        real(*arguments)


def main(arguments: list[str]) -> None:
    """Run the command with its saboteur."""
    from stimulus_moo.__main__ import main as command

    saboteur = Saboteur(int(arguments[0]))
    sys.argv = ["stimulus-moo", *arguments[1:]]
    saboteur.take_over()
    try:
        command()
    finally:
        print(saboteur.count)


if __name__ == "__main__":
    main(sys.argv[1:])
