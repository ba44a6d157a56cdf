"""Errors and warnings. Messages name the argument, the value found and the fix."""

from os import PathLike
from typing import Any, ClassVar

#: The documentation site. Messages point to its pages.
DOCS = "https://stimulus-moo.readthedocs.io/en/latest/"


class StimulusError(Exception):
    """Base class of the errors of this library; a note gives the URL of a page with more information.

    >>> InvalidLosses("losses must return S scalars").__notes__
    ['see https://stimulus-moo.readthedocs.io/en/latest/guides/own-loop.html#what-losses-must-return']
    """

    page: ClassVar[str] = DOCS + "guides/own-loop.html#when-something-goes-wrong"

    def __init__(self, *args: object) -> None:
        super().__init__(*args)
        self.add_note(f"see {self.page}")  # in a traceback, below the message


class InvalidOption(StimulusError, ValueError):
    """An argument has an invalid value."""

    page = DOCS + "api.html"


class InvalidBatch(StimulusError, ValueError):
    """A batch, an anchor or a data set cannot be used."""

    page = DOCS + "guides/own-loop.html#batches-and-anchors"


class InvalidLosses(StimulusError, ValueError):
    """``losses`` did not return S scalars that depend on the model."""

    page = DOCS + "guides/own-loop.html#what-losses-must-return"


class InvalidWeights(StimulusError, ValueError):
    """A weighting did not return S finite numbers."""

    page = DOCS + "weightings.html"


class NonFiniteError(StimulusError, ArithmeticError):
    """A loss or a gradient of ``objective`` is NaN or infinite in call ``step`` of ``backward``; both count from 0.

    ``name`` is that of the loss, where ``losses`` returns a dict.
    """

    page = DOCS + "guides/step-size.html"

    def __init__(self, message: str, *, objective: int, step: int) -> None:
        super().__init__(message)
        self.objective, self.step = objective, step
        self.name: str | None = None  # of the loss, where ``losses`` returns a dict
        self.objectives = 0  # S, where another process has found it; it may not be known here


class ModelChanged(StimulusError, RuntimeError):
    """The model's trainable parameters changed since the estimator was started."""


class ConcurrentUse(StimulusError, RuntimeError):
    """A MultiGradient was called by a second thread, or from inside its own ``losses``, in the middle of a step."""

    page = DOCS + "guides/own-loop.html#threads-and-processes"


class NotCopyable(StimulusError, TypeError):
    """An object can be neither copied nor pickled; ``state_dict`` is the way to move it."""

    page = DOCS + "guides/own-loop.html#threads-and-processes"


class StateMismatch(StimulusError, ValueError):
    """A saved state does not fit the object that it is loaded into."""

    page = DOCS + "guides/resume.html"


class NotWritten(StimulusError, OSError):
    """A file could not be written: the disk is full, or its folder is gone or read-only.

    The previous file is intact. ``errno`` and ``filename`` are those of the original error.
    """

    page = DOCS + "reliability.html#what-is-promised"

    def __init__(self, path: str | PathLike[str], error: OSError) -> None:
        reason = error.strerror or str(error)
        super().__init__(error.errno, reason, str(path))
        self._problem = f"{path} could not be written ({reason})"

    def __str__(self) -> str:
        return f"{self._problem}. The previous file is intact. Fix the disk or its permissions, then resume"

    def __reduce__(self) -> tuple[Any, ...]:
        return NotWritten, (self.filename, OSError(self.errno, self.strerror))


class DistributedError(StimulusError, RuntimeError):
    """Processes could not take a step together: one of them died or stalled, or the network failed."""

    page = DOCS + "distributed.html#when-something-fails"


class RankMismatch(DistributedError, ValueError):
    """The processes differ in their model, their batches or their state."""


class RankFailed(DistributedError):
    """Process ``rank`` raised an error in call ``step`` of ``backward``, counted from 0; nothing has changed here."""

    def __init__(self, message: str, *, rank: int, step: int) -> None:
        super().__init__(message)
        self.rank, self.step = rank, step


class MissingDependency(StimulusError, ImportError):
    """An optional package is not installed."""

    page = DOCS + "get-started.html#1-install"


class StimulusWarning(UserWarning):
    """Something works, but probably not as intended."""
