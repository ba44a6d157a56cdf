"""The command line in a process that kills itself: ``python -m reliability.victim N run digits ...``.

At the N-th operation that changes the disk, half of the operation is done and the process ends by SIGKILL, as in a
power failure. N = 0 only counts: the last line on standard output is the number of operations.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

#: the operations with which the library changes the disk; open files are flushed before ``os.fsync``
OPERATIONS = ("write", "fsync", "replace", "unlink", "ftruncate", "mkdir")


class Saboteur:
    """Counts the operations, and kills the process at one of them."""

    def __init__(self, strike_at: int) -> None:
        self.strike_at, self.count = strike_at, 0

    def take_over(self) -> None:
        """Replace the functions of ``os``."""
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
    """Do the part of an operation that a power failure may leave."""
    if name == "write":
        real(arguments[0], arguments[1][: len(arguments[1]) // 2])
    elif name == "fsync":  # data not yet on the disk is lost: half of the file
        with suppress(OSError):  # a folder
            os.truncate(arguments[0], os.fstat(arguments[0]).st_size // 2)
    elif name in ("replace", "unlink") and os.getpid() % 2:  # done, or not
        real(*arguments)


def main(arguments: list[str]) -> None:
    """Run the command with a saboteur."""
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
