"""The TensorBoard callback: what is in the event files is what is in the history."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from stimulus_moo import InvalidOption, MissingDependency, TensorBoardLogger, fit


def read(folder: Path) -> dict[str, dict[int, float]]:
    """The scalars of a folder by tag and step."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder))
    found.Reload()
    return {tag: {event.step: event.value for event in found.Scalars(tag)} for tag in found.Tags()["scalars"]}


def train(folder: Path, steps: int, every: int = 1, **changes: Any) -> Any:
    torch.manual_seed(0)
    x = torch.randn(64, 3)
    logger = TensorBoardLogger(folder / "board", every=every)
    options: dict[str, Any] = {"evaluate_every": 5, "checkpoint": folder / "run", "progress": False, **changes}
    result = fit(
        torch.nn.Linear(3, 2), lambda m, b: m(b).square().mean(0), x, lr=0.1, steps=steps, callbacks=[logger], **options
    )
    logger.close()
    return result


@pytest.mark.filterwarnings("ignore")  # tensorboard's own
def test_event_files_hold_the_history(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    train(tmp_path, 7)
    result = train(tmp_path, 12, resume=True)  # goes on in the same folder
    found = read(tmp_path / "board")
    assert list(found["gradients"].values()) == result.history["gradients"]
    assert list(found["passes"].values()) == result.history["passes"]
    assert list(found["seconds"].values()) == pytest.approx(result.history["seconds"])
    for s in range(2):
        assert list(found[f"loss/{s}"].values()) == pytest.approx([losses[s] for losses in result.history["losses"]])
        assert list(found[f"weight/{s}"].values()) == pytest.approx([w[s] for w in result.history["weights"]])
    assert list(found["stationarity"]) == [4, 9]
    assert list(found["full_loss/1"]) == [4, 9]


@pytest.mark.filterwarnings("ignore")
def test_every_so_many_steps_and_wherever_it_was_evaluated(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    train(tmp_path, 9, every=4)
    assert list(read(tmp_path / "board")["sq_norm"]) == [3, 4, 7]


def test_without_tensorboard_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(MissingDependency, match="pip install tensorboard"):
        TensorBoardLogger("board")


@pytest.mark.filterwarnings("ignore")
def test_bad_interval_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    with pytest.raises(InvalidOption, match="every must be a positive integer, found 0"):
        TensorBoardLogger(tmp_path, every=0)
