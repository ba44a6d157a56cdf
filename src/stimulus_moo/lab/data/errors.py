"""The error of the data loaders."""

from __future__ import annotations

from stimulus_moo.errors import DOCS, StimulusError


class DataError(StimulusError):
    """A data file is missing, damaged or in another format. The message names the file, the problem and the fix."""

    page = DOCS + "lab.html#data"
