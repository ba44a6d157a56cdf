from __future__ import annotations

import math

from stimulus_moo.lab.runs.tuning import tune
from tests.lab.fake_lab import TINY


def test_tuning_finds_the_best_and_extends_the_grid() -> None:
    told: list[str] = []
    settings = TINY.settings.override({"steps": 12})
    tuned = tune(TINY, "scalarisation", settings, seeds=(7,), grid=(0.001, 0.003, 0.01), report=told.append)
    assert tuned.best > 0.01  # the edge was left
    assert len(tuned.scores) == len(told) > 3
    assert tuned.scores[tuned.best] == min(tuned.scores.values())


def test_a_diverging_rate_is_infinitely_bad() -> None:
    settings = TINY.settings.override({"steps": 60})
    tuned = tune(TINY, "scalarisation", settings, seeds=(7,), grid=(0.1, 1e30))
    assert math.isinf(tuned.scores[1e30])
    assert tuned.best != 1e30
