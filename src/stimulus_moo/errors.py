"""Every error and warning of the library: one typed base, and messages that say what was found and what to do."""

from __future__ import annotations

from os import PathLike


class StimulusError(Exception):
    """Base of every error this library raises on purpose."""


class InvalidOption(StimulusError, ValueError):
    """An argument has a value that cannot work; the message names it, the value found and what is allowed."""


class InvalidBatch(StimulusError, ValueError):
    """A batch, an anchor or a data set cannot be used as given."""


class InvalidLosses(StimulusError, ValueError):
    """The user's ``losses`` returned something other than S scalar losses that depend on the model."""


class InvalidWeights(StimulusError, ValueError):
    """A weighting returned something other than S finite numbers."""


class NonFiniteError(StimulusError, ArithmeticError):
    """A loss or a gradient is NaN or infinite.

    Attributes:
        objective: which objective, counted from 0.
        step: at which call of ``backward``, counted from 0.
    """

    def __init__(self, message: str, *, objective: int, step: int) -> None:
        super().__init__(message)
        self.objective = objective
        self.step = step


class ModelChanged(StimulusError, RuntimeError):
    """The model's trainable parameters are not the ones the estimator has been following."""


class StateMismatch(StimulusError, ValueError):
    """A saved state does not belong to the object it is loaded into."""


class NotWritten(StimulusError, OSError):
    """A file could not be written: the disk is full, or its folder is gone or read-only.

    What stood under its name before is still there, whole. ``errno`` and ``filename`` are those of the system's error.
    """

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


class StimulusWarning(UserWarning):
    """Something works, but probably not as the user thinks."""
