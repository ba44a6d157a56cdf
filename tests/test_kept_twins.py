"""Every rule with kept weights against its literal numpy twin: path, weights, which steps solve, and all counters."""

from __future__ import annotations

import numpy as np
import pytest

from tests.database import ENGINES, KEPT, METHODS, Run
from tests.properties import KEPT_STEPS, check_equals_kept_twin, kept_twin_of

#: Fixed weights are not solved for, so there is nothing to sketch
SOLVED = [name for name, info in KEPT.items() if info.reweigh != 1]
COMPILED = ("smgd, 3", "moco+, 3", "stimulus-m, anchor")


@pytest.mark.parametrize("engine", ["rowwise", "batched"])
@pytest.mark.parametrize("name", KEPT)
def test_kept_weights_equal_twin(name: str, engine: str) -> None:
    check_equals_kept_twin(KEPT[name], ENGINES[engine])


@pytest.mark.slow
@pytest.mark.parametrize("name", COMPILED)
def test_compiled_kept_weights_equal_twin(name: str) -> None:
    check_equals_kept_twin(KEPT[name], ENGINES["compiled"])


@pytest.mark.parametrize("name", COMPILED)
def test_kept_weights_of_large_models_equal_twin(name: str) -> None:
    check_equals_kept_twin(KEPT[name], ENGINES["rowwise, in place"])


@pytest.mark.parametrize("name", SOLVED)
def test_a_sketch_of_few_parameters_is_exact(name: str) -> None:
    check_equals_kept_twin(KEPT[name], ENGINES["auto"], gramian="sketch")


@pytest.mark.parametrize("name", SOLVED)
def test_kept_weights_change_the_path(name: str) -> None:
    """The tolerance would be empty if the twins with kept weights took the path of those without."""
    info = KEPT[name]
    kept, plain = kept_twin_of(info, sketch=False), Run(METHODS[info.name]).run(KEPT_STEPS)
    assert np.abs(kept.x - plain.path).max() > 1e-5
    assert 0 < kept.reweighed.sum() < KEPT_STEPS
    assert plain.multigradient.passes == 3 * plain.multigradient.gradients
    assert kept.passes[-1] < 0.75 * plain.multigradient.passes
