"""Moments that a signal must not cut in two: it is noted, and acts when they are over."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

#: What may raise an exception anywhere in the main thread: Ctrl-C, and what a batch system sends before it kills.
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class DeferredInterrupts:
    """A context that holds back Ctrl-C and SIGTERM, where Python handles them, until it ends.

    Only the main thread receives them, so elsewhere the context does nothing. It costs some ten microseconds: what can
    be repeated is better off with ``complete``.

    >>> import signal
    >>> done = []
    >>> before = signal.signal(signal.SIGTERM, lambda number, frame: done.append("then the signal"))
    >>> with DeferredInterrupts():
    ...     signal.raise_signal(signal.SIGTERM)
    ...     done.append("all of it")
    >>> done, signal.signal(signal.SIGTERM, before) is None
    (['all of it', 'then the signal'], False)
    """

    def __init__(self) -> None:
        self._before: dict[int, Callable[[int, FrameType | None], Any]] = {}
        self._came: list[Callable[[], Any]] = []

    def __enter__(self) -> DeferredInterrupts:
        if threading.current_thread() is threading.main_thread():
            try:
                for number in _SIGNALS:
                    handler = signal.getsignal(number)
                    if callable(handler):
                        self._before[number] = handler
                        signal.signal(number, self._note)
            except BaseException:  # a signal that was quicker
                self._restore()
                raise
        return self

    def __exit__(self, *_: object) -> None:
        self._restore()
        for act in self._came:
            act()

    def _note(self, number: int, frame: FrameType | None) -> None:
        handler = self._before[number]
        self._came.append(lambda: handler(number, frame))

    def _restore(self) -> None:
        for number, handler in self._before.items():
            try:
                signal.signal(number, handler)
            except BaseException:  # raised by a handler that is back already: put the others back all the same
                self._restore()
                raise


def complete(action: Callable[[], None]) -> None:
    """Take an action that may be repeated to its end: where a signal cuts it, it is taken again before the signal acts.

    It costs nothing where no signal comes.
    """
    try:
        action()
    except BaseException:
        with DeferredInterrupts():
            action()
        raise
