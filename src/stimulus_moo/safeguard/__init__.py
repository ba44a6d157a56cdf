"""A guard that attaches itself to an optimizer and a MultiGradient; one file per rule it follows."""

from stimulus_moo.safeguard.guard import Safeguard

__all__ = ["Safeguard"]
