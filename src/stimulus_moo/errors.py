"""Every error and warning of the library: one typed base, and messages that say what was found and what to do."""

from __future__ import annotations

from os import PathLike
from typing import ClassVar

#: Site of the documentation; each error names one of its pages.
DOCS = "https://stimulus-moo.readthedocs.io/en/latest/"


class StimulusError(Exception):
    """Base of every error this library raises on purpose; each names the page of the documentation that says more.

    >>> InvalidLosses("losses must return S scalars").__notes__
    ['see docs/guides/own-loop.md#what-losses-must-return']
    """

    page: ClassVar[str] = "docs/guides/own-loop.md#when-something-goes-wrong"

    def __init__(self, *args: object) -> None:
        super().__init__(*args)
        self.add_note(f"see {self.page}")  # in a traceback, below the message


class InvalidOption(StimulusError, ValueError):
    """An argument has a value that cannot work; the message names it, the value found and what is allowed."""

    page = "docs/api.md"


class InvalidBatch(StimulusError, ValueError):
    """A batch, an anchor or a data set cannot be used as given."""

    page = "docs/guides/own-loop.md#batches-and-anchors"


class InvalidLosses(StimulusError, ValueError):
    """The user's ``losses`` returned something other than S scalar losses that depend on the model."""

    page = "docs/guides/own-loop.md#what-losses-must-return"


class InvalidWeights(StimulusError, ValueError):
    """A weighting returned something other than S finite numbers."""

    page = "docs/weightings.md"


class NonFiniteError(StimulusError, ArithmeticError):
    """A loss or a gradient is NaN or infinite.

    Attributes:
        objective: which objective, counted from 0.
        step: at which call of ``backward``, counted from 0.
    """

    page = "docs/guides/step-size.md"

    def __init__(self, message: str, *, objective: int, step: int) -> None:
        super().__init__(message)
        self.objective = objective
        self.step = step


class ModelChanged(StimulusError, RuntimeError):
    """The model's trainable parameters are not the ones the estimator has been following."""


class StateMismatch(StimulusError, ValueError):
    """A saved state does not belong to the object it is loaded into."""

    page = "docs/guides/resume.md"


class NotWritten(StimulusError, OSError):
    """A file could not be written: the disk is full, or its folder is gone or read-only.

    What stood under its name before is still there, whole. ``errno`` and ``filename`` are those of the system's error.
    """

    page = "docs/reliability.md#what-is-promised"

    def __init__(self, path: str | PathLike[str], error: OSError) -> None:
        reason = error.strerror or str(error)
        super().__init__(error.errno, reason, str(path))
        self._message = (
            f"{path} could not be written ({reason}); what was there before is whole: mend the disk or the folder, "
            "and go on from there"
        )

    def __str__(self) -> str:
        return self._message

    def __reduce__(self) -> tuple[type[NotWritten], tuple[object, ...]]:
        return NotWritten, (self.filename, OSError(self.errno, self.strerror))


class DistributedError(StimulusError, RuntimeError):
    """Processes that make a step together could not: one has died or stalled, or the network has failed."""

    page = "docs/distributed.md#when-something-fails"


class RankMismatch(DistributedError, ValueError):
    """Processes that should make the same steps differ in their model, their batches or their state."""


class RankFailed(DistributedError):
    """Another process raised an error of its own in this step; here nothing was wrong, and nothing has changed.

    Attributes:
        rank: the process that raised.
        step: at which call of ``backward``, counted from 0.
    """

    def __init__(self, message: str, *, rank: int, step: int) -> None:
        super().__init__(message)
        self.rank = rank
        self.step = step


class MissingDependency(StimulusError, ImportError):
    """An optional package is needed for what was asked."""

    page = "docs/get-started.md#1-install"


class StimulusWarning(UserWarning):
    """Something works, but probably not as the user thinks."""
