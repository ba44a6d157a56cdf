"""Handling of Ctrl-C and SIGTERM: the current step is finished and saved, then the run ends."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupted(KeyboardInterrupt):
    """Raised when a signal stopped the work. All results so far are saved.

    Attributes:
        code: exit code, 128 plus the number of the signal: 130 for Ctrl-C, 143 for SIGTERM.
    """

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.code = 128 + number


class Stop:
    """Whether a signal was received."""

    def __init__(self) -> None:
        self.number: int | None = None

    def check(self) -> None:
        """Raise Interrupted if a signal was received."""
        if self.number is not None:
            raise Interrupted(self.number)


@contextmanager
def deferred(asked: Callable[[], None]) -> Iterator[Stop]:
    """Record the first signal and call ``asked``, so that the caller can stop cleanly; raise at the second signal."""
    stop = Stop()

    def handle(number: int, _: FrameType | None) -> None:
        if stop.number is not None:
            raise Interrupted(number)
        stop.number = number
        asked()

    with _handler(handle):
        yield stop


@contextmanager
def raise_at_once() -> Iterator[None]:
    """Raise ``Interrupted`` immediately when a signal is received."""

    def handle(number: int, _: FrameType | None) -> None:
        raise Interrupted(number)

    with _handler(handle):
        yield


@contextmanager
def _handler(handle: Callable[[int, FrameType | None], Any]) -> Iterator[None]:
    if (
        threading.current_thread() is not threading.main_thread()
    ):  # Python allows signal handlers in the main thread only
        yield
        return
    before = {number: signal.signal(number, handle) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, signal.SIG_DFL if old is None else old)
