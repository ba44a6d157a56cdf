"""fit on several processes: one result, written by the first one alone."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.utils.data import TensorDataset

from stimulus_moo import TensorBoardLogger, fit
from tests.distributed.launch import launch, values
from tests.distributed.paths import COLUMNS
from tests.harness import two_heads, two_losses, vector


class Fetched(TensorDataset):
    """A map-style data set: its samples are fetched one by one."""


def stream() -> Any:
    """The same samples for ever."""
    while True:
        yield from zip(*COLUMNS, strict=True)


class Endless:
    def __iter__(self) -> Any:
        return stream()


KINDS = {"columns": COLUMNS, "fetched": Fetched(*COLUMNS), "stream": Endless()}


def fit_kind(kind: str, method: str, **changes: Any) -> tuple[Any, ...]:
    options: dict[str, Any] = {"batch_size": 3, "period": 7, "steps": 20, "anchor_batch": 6, "progress": False}
    model = two_heads()
    result = fit(model, two_losses, KINDS[kind], method=method, lr=0.05, epsilon=0.05, **{**options, **changes})
    return vector(model), result.samples, result.gradients, result.stopped, result.stationarity, result.steps


CASES = [("columns", "stimulus"), ("fetched", "page-moo-m"), ("stream", "stimulus-m+")]


def fit_all() -> list[tuple[Any, ...]]:
    return [fit_kind(*case) for case in CASES]


@pytest.mark.parametrize("ranks", [2, 4])  # of four processes, one has no part of a batch of three
def test_every_kind_of_data_gives_the_result_of_one_process(ranks: int) -> None:
    alone = fit_all()
    for found in values(fit_all, ranks):
        for (end, *rest), (expected, *others) in zip(found, alone, strict=True):
            assert torch.allclose(end, expected, rtol=0, atol=1e-11)
            assert rest[:3] == others[:3]
            assert rest[3:] == pytest.approx(others[3:], rel=1e-9, nan_ok=True)


def fit_until(tolerance: float) -> tuple[Any, ...]:
    return fit_kind("columns", "mgd", steps=None, tolerance=tolerance, evaluation=[COLUMNS, COLUMNS], shard=True)


def test_evaluations_are_shared_and_end_the_run_everywhere() -> None:
    first, second = values(fit_until, 2, 0.03)
    assert first[1:] == second[1:]
    assert first[3] == "tolerance"
    assert first[4] <= 0.03


def fit_with_callbacks(folder: str) -> tuple[list[int], str, list[str]]:
    """The second process wishes to stop; the first one logs and keeps checkpoints."""
    seen = []

    def stop(told: Any) -> bool:
        seen.append(told.step)
        return dist.get_rank() == 1 and told.step == 5

    logger = TensorBoardLogger(os.path.join(folder, f"board-{dist.get_rank()}"))
    own = os.path.join(folder, str(dist.get_rank()))
    result = fit_kind("columns", "smgd", callbacks=[stop, logger], checkpoint=own, checkpoint_every=2)
    logger.close()
    return seen, result[3], sorted(os.listdir(folder))


def test_any_process_ends_the_run_and_only_the_first_writes(tmp_path: Path) -> None:
    for seen, stopped, _ in values(fit_with_callbacks, 2, str(tmp_path)):
        assert seen == [1, 2, 3, 4, 5]
        assert stopped == "callback"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "board-0"]


def refused(folder: str) -> None:
    fit_kind("columns", "smgd", checkpoint=folder, resume=False)


def test_a_folder_in_use_is_refused_everywhere(tmp_path: Path) -> None:
    fit_kind("columns", "smgd", checkpoint=tmp_path)
    for said in launch(refused, 2, str(tmp_path)):
        assert said.error == "InvalidOption"
        assert "must be a folder without checkpoints" in said.message
