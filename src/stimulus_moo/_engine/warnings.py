"""Warnings about how an object is used, each given once."""

from __future__ import annotations

import warnings

from stimulus_moo.errors import StimulusWarning


class WarnOnce:
    """Remembers what has been warned of.

    >>> import warnings
    >>> hints = WarnOnce()
    >>> with warnings.catch_warnings(record=True) as caught:
    ...     warnings.simplefilter("always")
    ...     for _ in range(2):
    ...         hints.tell("rate", "the rate is not yours", level=2)
    >>> len(caught), "rate" in hints
    (1, True)
    """

    def __init__(self) -> None:
        self._told: set[str] = set()

    def __contains__(self, subject: str) -> bool:
        return subject in self._told

    def tell(self, subject: str, message: str, *, level: int) -> None:
        """Warn of a subject, unless that was done; ``level`` frames up, 1 being this one, is the user's line."""
        if subject not in self._told:
            self._told.add(subject)
            warnings.warn(message, StimulusWarning, stacklevel=level)
