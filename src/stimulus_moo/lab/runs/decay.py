"""Decay of a given learning rate at the end of a run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stimulus_moo import Progress
from stimulus_moo.lab.experiment import ExperimentSettings

_LIMITS = ("gradients", "passes", "seconds")


def decay_of(settings: ExperimentSettings, lr: Any) -> list[Callable[[Progress], None]]:
    """Return the callbacks of ``fit`` that let the learning rate fall linearly to zero over the run's last part.

    There is none if ``settings.decay`` is 0, or if the method chooses its learning rate itself.
    """
    if not settings.decay or isinstance(lr, str):
        return []

    def fall(told: Progress) -> None:
        spent = {"steps": told.step, **{name: told.record[name] for name in _LIMITS}}
        limits = {name: getattr(settings, name) for name in spent}
        done = max((spent[name] / limit for name, limit in limits.items() if limit), default=0.0)
        for group in told.optimizer.param_groups:
            group["lr"] = lr * min(1.0, max(0.0, 1.0 - done) / settings.decay)

    return [fall]
