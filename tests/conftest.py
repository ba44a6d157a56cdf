"""Marks tests by where they are, for ``make quick``: ``lab`` is what is not the core, ``slow`` takes long."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

# Some virtual machines announce the matrix instructions for bfloat16 (AMX) and end the process that uses them.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE")
# Several processes with as many threads each take twice as long.
os.environ.setdefault("OMP_NUM_THREADS", "1")

ROOT = Path(__file__).parents[1]

#: what is built on the core, or around it
LAB = (
    "src/stimulus_moo/lab",
    "src/stimulus_moo/ranking",
    "tests/lab",
    "tests/ranking",
    "tests/reliability",
    "tests/test_benchmarks.py",
    "tests/test_docs.py",
    "tests/test_examples.py",
    "tests/test_package.py",
    "tests/test_quickstart.py",
    "tests/test_readme.py",
)

#: tests of several processes start them; ``test_smoke.py`` is the one that ``make quick`` runs
SLOW = ("tests/distributed/",)
NOT_SLOW = ("tests/distributed/test_smoke.py",)


def pytest_configure() -> None:
    """Seed the CPU alone where there is no accelerator.

    torch.manual_seed notes for every kind of accelerator that it is to be seeded later, with a formatted stack: that
    was a quarter of the time of tests/test_properties.py.
    """
    import torch  # after the environment is set

    if not torch.accelerator.is_available():
        torch.manual_seed = lambda seed: torch.default_generator.manual_seed(int(seed))


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not even import what ``-m`` leaves out: the lab's packages take longer than many of its tests."""
    left_out = "not lab" in config.option.markexpr
    return True if left_out and collection_path.relative_to(ROOT).as_posix().startswith(LAB) else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        path = item.path.relative_to(ROOT).as_posix()
        if path.startswith(LAB):
            item.add_marker(pytest.mark.lab)
        if item.nodeid.startswith(SLOW) and not path.startswith(NOT_SLOW):
            item.add_marker(pytest.mark.slow)


@pytest.fixture(autouse=True)
def seeded() -> None:
    """Begin every test with the same random state, whatever ran before it in this process."""
    import torch

    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def unchecked(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Switch the check of the first steps off, except in modules with ``CHECKED = True``.

    Tests count evaluations, and call ``backward`` without an optimizer on purpose.
    """
    if not getattr(request.module, "CHECKED", False):
        monkeypatch.setattr("stimulus_moo.multigradient.LoopCheck", lambda: None)
