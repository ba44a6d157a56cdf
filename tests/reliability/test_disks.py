"""Disks that are full, read-only or gone, and signals: a clear error, checkpoints intact, and nothing lost."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from reliability.disks import FAULTS, CannotMount, outcome, small_disk
from stimulus_moo import NotWritten, fit
from stimulus_moo.lab.runs.runner import run_one
from stimulus_moo.training import checkpoint
from tests.lab.fake_lab import TINY

#: the losses that strike are not those of the run that goes on
pytestmark = pytest.mark.filterwarnings("ignore:the checkpoint was made with losses")

REASONS = {
    "disk": "No space left on device",
    "file": "File too large",
    "read-only": "Permission denied",
    "directory": "No such file or directory",
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    run_one(TINY, "stimulus-m", TINY.settings, 0, folder)
    return folder


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that other users reach, unlike those of pytest."""
    made = Path(tempfile.mkdtemp())
    made.chmod(0o755)
    yield made
    shutil.rmtree(made)


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_told_and_nothing_is_lost(name: str, folder: Path, whole: Path) -> None:
    try:
        found = outcome(name, folder, whole, TINY)
    except CannotMount as error:
        pytest.skip(f"no small file system here: {error}")
    assert found.differs == []
    assert found.whole == 2
    if name in ("Ctrl-C", "SIGTERM"):
        assert found.code == {"Ctrl-C": 130, "SIGTERM": 143}[name]
    else:
        assert found.code == 2
        reason = REASONS[name.split()[0]]
        assert f"could not be written ({reason}). The previous file is intact" in found.said


def squares(model: torch.nn.Module, batch: torch.Tensor) -> torch.Tensor:
    return model(batch).square().mean(0)[:2]


def test_fit_on_a_full_disk_keeps_the_checkpoints_before(folder: Path) -> None:
    x = torch.randn(16, 300, generator=torch.Generator().manual_seed(0))
    model = torch.nn.Linear(300, 300)  # more than a megabyte for a checkpoint with its rows
    options: dict[str, Any] = {"lr": 0.01, "steps": 9, "checkpoint_every": 1, "checkpoint_keep": 9}
    try:
        with small_disk(folder):
            with pytest.raises(NotWritten) as caught:
                fit(model, squares, x, checkpoint=folder / "c", **options)
            assert caught.value.errno == errno.ENOSPC
            assert str(folder / "c") in str(caught.value)
            kept = checkpoint.files(folder / "c")
            assert [checkpoint.read(path)["step"] for path in kept] == list(range(len(kept), 0, -1))
            assert len(kept) >= 1
            expected = {name for path in kept for name in (path.name, checkpoint.checksum_file(path).name)}
            assert set(os.listdir(folder / "c")) == expected
    except CannotMount as error:
        pytest.skip(f"no small file system here: {error}")


def test_a_folder_removed_under_fit_is_not_made_again(tmp_path: Path) -> None:
    def remove(told: Any) -> None:
        if told.step == 3:
            shutil.rmtree(tmp_path / "c")

    model = torch.nn.Linear(2, 2)
    with pytest.raises(NotWritten, match=r"checkpoint-000000004\.pt could not be written .No such file or directory"):
        fit(model, squares, torch.randn(8, 2), lr=0.01, steps=9, checkpoint=tmp_path / "c", checkpoint_every=2,
            callbacks=[remove])  # fmt: skip
    assert not (tmp_path / "c").exists()
