"""Warnings given once per object: BatchNorm in training mode, failed replay of random draws, steps far too long."""

import math
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path

from stimulus_moo._engine.observation import Observation
from stimulus_moo.errors import DOCS, StimulusWarning

_LIBRARY = str(Path(__file__).parents[1])

#: A step this many times as long as 1/L is called too long. Gradient descent on a quadratic diverges from 2 on.
FAR_TOO_LONG = 10.0


#: How often a loop without a safeguard is checked for far too long steps: at the first steps, then at one in so many.
_FIRST, _EVERY = 16, 64


def due_for_check(t: int) -> bool:
    """Return whether step t is checked for its length."""
    return t < _FIRST or t % _EVERY == 1


class WarnOnce:
    """Gives each warning once.

    >>> import warnings
    >>> warn = WarnOnce()
    >>> with warnings.catch_warnings(record=True) as caught:
    ...     warnings.simplefilter("always")
    ...     for _ in range(2):
    ...         warn("rate", "the learning rate was changed")
    >>> len(caught), "rate" in warn.given
    (1, True)
    """

    def __init__(self) -> None:
        self.given: set[str] = set()

    def __call__(self, subject: str, message: str) -> None:
        """Warn about a subject unless that was done; the warning points to the first line outside the library."""
        if subject in self.given:
            return
        self.given.add(subject)
        level, frame = 1, sys._getframe()
        while frame.f_back is not None and frame.f_code.co_filename.startswith(_LIBRARY):
            level, frame = level + 1, frame.f_back
        warnings.warn(message, StimulusWarning, stacklevel=level)


def batch_norm_message(layers: Sequence[str]) -> str:
    return (
        f"BatchNorm in training mode makes the samples of a batch depend on each other ({', '.join(layers)}), so the "
        "loss is not a finite sum and the estimate is biased; use GroupNorm or LayerNorm, or call .eval() on these "
        f"layers; see {DOCS}guides/batchnorm.html"
    )


def replay_message(step: int) -> str:
    return (
        f"at step {step} the batch was evaluated at two points, and the global random generators of torch were then in "
        "different states, so the same random numbers could not be replayed; if the model or the losses draw any, the "
        "estimate is inexact. Another thread draws from a global generator: give it a torch.Generator of its own. Or "
        "the number of draws in the model depends on its parameters: draw a fixed number; see "
        f"{DOCS}guides/batchnorm.html"
    )


def long_step_message(seen: Observation | None) -> str | None:
    """Return the warning for a step far longer than the observed smoothness allows; None where it is not."""
    if seen is None or not seen.smoothness or not seen.sq_norm or seen.moved is None or seen.decrease is None:
        return None
    taken, smoothness = seen.moved / math.sqrt(seen.sq_norm), seen.smoothness
    if taken * smoothness <= FAR_TOO_LONG or seen.decrease >= 0:
        return None
    return (
        f"the step from {seen.step - 1} to {seen.step} was {taken:.3g} times the gradient, which is "
        f"{taken * smoothness:.0f} times 1/L for the observed smoothness L = {smoothness:.3g}, and the loss rose; use "
        "a smaller learning rate or a safeguard (guard=True in fit, the default; Safeguard(optimizer, mg) in your own "
        f"loop; no --no-guard on the command line); see {DOCS}guides/step-size.html"
    )
