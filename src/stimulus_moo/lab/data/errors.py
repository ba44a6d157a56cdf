"""The error of every loader: which file, what was expected, what was found and how to get it."""

from __future__ import annotations

from stimulus_moo.errors import StimulusError


class DataError(StimulusError):
    """A data file is missing, damaged or of another layout; the message names it and says what to do."""

    page = "docs/lab.md#data"
