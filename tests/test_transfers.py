"""How often a step waits for an accelerator, counted on a device of our own: tests/counting_device.py, docs/gpu.md."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[1]

LOSSES, AGAIN, GRAMIAN, NORM, FINITE, MORE = (
    ("copies to the CPU: evaluate",),
    ("copies to the CPU: _observe",),
    ("copies to the CPU: _products",),
    ("waits: combine", "waits: mix"),
    ("waits: all_finite",),
    ("waits: distance", "waits: end"),
)
#: by case and kind of step: losses, losses again, Gramian, norms, checks for NaN, other norms
EXPECTED = {
    ("mini-batch, batched", "solve"): (1, 0, 1, 1, 1, 0),
    ("mini-batch, kept", "solve"): (1, 0, 1, 1, 0, 0),
    ("mini-batch, kept", "kept"): (1, 0, 0, 1, 0, 0),
    ("recursive", "anchor"): (1, 0, 1, 1, 0, 0),
    ("recursive", "solve"): (2, 0, 1, 1, 0, 0),  # two points
    ("recursive, kept", "anchor"): (1, 0, 1, 1, 0, 0),
    ("recursive, kept", "kept"): (2, 0, 0, 1, 0, 0),
    ("auto", "kept"): (1, 1, 0, 1, 0, 0),
    ("metric, kept", "solve"): (1, 0, 1, 1, 0, 0),
    ("metric, kept", "kept"): (1, 0, 0, 1, 0, 0),
    ("recursive, safeguard", "anchor"): (1, 1, 1, 1, 0, 2),
    ("recursive, safeguard", "solve"): (2, 2, 1, 3, 0, 3),
    ("filtered", "solve"): (4, 2, 1, 1, 4, 4),  # two points for each half of the batch
    ("filtered, kept", "kept"): (4, 2, 0, 1, 4, 4),
    ("mini-batch, kept, DoG", "kept"): (1, 0, 0, 1, 0, 1),
}


@pytest.fixture(scope="module")
def report() -> dict[str, Any]:
    run = subprocess.run(
        [sys.executable, "-m", "tests.counting_device"],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-2000:]
    found: dict[str, Any] = json.loads(run.stdout)
    return found


def test_a_step_waits_for_its_losses_one_norm_and_the_gramian_only(report: dict[str, Any]) -> None:
    """The model has six tensors and there are three losses: nothing is fetched by tensor or by loss."""
    seen = set()
    for (case, kind), expected in EXPECTED.items():
        for found_kind, counts in report[case]["steps"]:
            if found_kind != kind:
                continue
            seen.add((case, kind))
            waits = {place: n for place, n in counts.items() if "to the device" not in place}
            places = (LOSSES, AGAIN, GRAMIAN, NORM, FINITE, MORE)
            found = tuple(sum(waits.pop(place, 0) for place in group) for group in places)
            assert found == expected, (case, kind)
            assert waits == {}, (case, kind)
    assert seen == set(EXPECTED)


def test_only_weights_are_sent_to_the_device(report: dict[str, Any]) -> None:
    for case, kind in EXPECTED:
        for found_kind, counts in report[case]["steps"]:
            sent = {place.split(": ")[1]: n for place, n in counts.items() if "to the device" in place}
            assert set(sent) <= {"losses", "combination_of", "add_stacked", "_write"}, (case, kind)
            assert sum(sent.values()) <= 6, (case, found_kind)


def test_rows_on_the_cpu_fetch_every_gradient_once(report: dict[str, Any]) -> None:
    for kind, counts in report["rows on the CPU"]["steps"]:
        points = 1 if kind == "anchor" else 2
        assert counts["copies to the CPU: _sum"] == points * 3 * 6  # losses times tensors
        assert counts["copies to the device: combine"] == 6  # the direction


def test_training_on_the_device_is_that_on_the_cpu(report: dict[str, Any]) -> None:
    """The same kernels run in the end; only norms are summed in another order."""
    assert {case: found["difference"] < 1e-7 for case, found in report.items()} == dict.fromkeys(report, True)
