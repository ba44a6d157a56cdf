"""Checkpoints: whole, checked, the last few kept, and nothing inside them is run."""

from __future__ import annotations

import hashlib
import os
import pickle
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stimulus_moo import InvalidOption, NotWritten, StateMismatch, StimulusWarning, fit
from stimulus_moo.training import checkpoint
from stimulus_moo.training.files import write_whole


def state(step: int) -> dict[str, Any]:
    return {"step": step, "model": {"w": torch.full((3,), float(step))}, "name": "x"}


def test_the_last_few_are_kept_and_the_newest_is_read(tmp_path: Path) -> None:
    assert checkpoint.load(tmp_path) is None
    (tmp_path / "new").mkdir()
    for step in (5, 10, 1_000_000_000, 7):
        checkpoint.save(tmp_path / "new", state(step), keep=3)
    assert [path.name for path in checkpoint.files(tmp_path / "new")] == [
        "checkpoint-1000000000.pt",
        "checkpoint-000000010.pt",
        "checkpoint-000000007.pt",
    ]
    found = checkpoint.load(tmp_path / "new")
    assert found is not None
    assert found["step"] == 1_000_000_000
    assert torch.equal(found["model"]["w"], torch.full((3,), 1e9))


def test_other_files_are_not_checkpoints(tmp_path: Path) -> None:
    for name in ("checkpoint-x.pt", "checkpoint-12.pt", "checkpoint-000000001.pt.bak", ".checkpoint-000000001.pt.half"):
        (tmp_path / name).write_bytes(b"")
    (tmp_path / "checkpoint-000000007.pt").mkdir()
    assert checkpoint.load(tmp_path) is None
    checkpoint.sweep(tmp_path)
    assert len(list(tmp_path.iterdir())) == 5


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(at=st.floats(0, 1), change=st.integers(1, 255), cut=st.booleans())
def test_any_damage_is_noticed_and_the_one_before_is_used(tmp_path: Path, at: float, change: int, cut: bool) -> None:
    checkpoint.save(tmp_path, state(1), keep=2)
    checkpoint.save(tmp_path, state(2), keep=2)
    newest = tmp_path / "checkpoint-000000002.pt"
    whole = newest.read_bytes()
    place = min(int(at * len(whole)), len(whole) - 1)
    newest.write_bytes(whole[:place] if cut else whole[:place] + bytes([whole[place] ^ change]) + whole[place + 1 :])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = checkpoint.load(tmp_path)
    assert found is not None
    assert found["step"] == 1
    assert [w.category for w in caught] == [StimulusWarning]
    assert "checkpoint-000000002.pt is damaged" in str(caught[0].message)
    assert "continuing from checkpoint-000000001.pt" in str(caught[0].message)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(at=st.floats(0, 1), change=st.integers(1, 255), cut=st.booleans())
def test_damage_of_a_checkpoint_without_its_checksum_is_noticed(
    tmp_path: Path, at: float, change: int, cut: bool
) -> None:
    """The archive has checksums of its own; a byte between its records does not matter."""
    checkpoint.save(tmp_path, state(2), keep=1)
    (path,) = checkpoint.files(tmp_path)
    checkpoint.checksum_file(path).unlink()
    whole = path.read_bytes()
    place = min(int(at * len(whole)), len(whole) - 1)
    path.write_bytes(whole[:place] if cut else whole[:place] + bytes([whole[place] ^ change]) + whole[place + 1 :])
    try:
        found = checkpoint.read(path)
    except StateMismatch:
        return
    assert not cut
    assert torch.equal(found["model"]["w"], torch.full((3,), 2.0))


def test_torch_load_opens_a_checkpoint_and_sha256sum_checks_it(tmp_path: Path) -> None:
    checkpoint.save(tmp_path, state(3), keep=1)
    (path,) = checkpoint.files(tmp_path)
    found = torch.load(path, weights_only=True)
    assert (found["kind"], found["step"]) == ("stimulus-moo checkpoint", 3)
    digest, name = checkpoint.checksum_file(path).read_text().split()
    assert (digest, name) == (hashlib.sha256(path.read_bytes()).hexdigest(), path.name)


def test_checksums_go_with_their_checkpoints(tmp_path: Path) -> None:
    for step in range(4):
        checkpoint.save(tmp_path, state(step), keep=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        f"checkpoint-00000000{step}.pt{end}" for step in (2, 3) for end in ("", ".sha256")
    ]
    (tmp_path / "checkpoint-000000009.pt.sha256").write_text("of a process that was killed")
    checkpoint.sweep(tmp_path)
    assert len(list(tmp_path.iterdir())) == 4


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("step", value) for value in (True, -1, 2.0, "2", None, torch.tensor(2))),
        *(("version", value) for value in (True, 4.0, "4", None, [4], 3, torch.tensor([4]))),
        *(("kind", value) for value in (None, 1, "x", b"stimulus-moo checkpoint")),
    ],
)
def test_a_wrong_head_is_refused(tmp_path: Path, name: str, value: Any) -> None:
    checkpoint.save(tmp_path, state(2), keep=1)
    (path,) = checkpoint.files(tmp_path)
    saved = torch.load(path, weights_only=True)
    for changed in ({**saved, name: value}, {key: item for key, item in saved.items() if key != name}):
        torch.save(changed, path)
        checkpoint.checksum_file(path).unlink(missing_ok=True)
        with pytest.raises(StateMismatch):
            checkpoint.read(path)


class Bomb:
    def __reduce__(self) -> Any:
        return os.system, ("touch /tmp/stimulus-moo-was-here",)


@pytest.mark.parametrize("content", [b"", b"text", pickle.dumps(Bomb()), pickle.dumps({"kind": "x"})])
def test_foreign_files_are_refused_and_not_run(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "checkpoint-000000001.pt"
    path.write_bytes(content)
    with pytest.raises(StateMismatch, match=r"checkpoint-000000001\.pt .*remove it to start again"):
        checkpoint.load(tmp_path)
    assert not Path("/tmp/stimulus-moo-was-here").exists()


def test_an_archive_alone_is_not_a_checkpoint(tmp_path: Path) -> None:
    torch.save(state(1), tmp_path / "checkpoint-000000001.pt")
    with pytest.raises(StateMismatch, match="is not a checkpoint of stimulus-moo"):
        checkpoint.load(tmp_path)


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"version": 99}, "of version 99, this library reads 6"),
        ({"version": None}, "of version None, this library reads 6"),
        ({"kind": "stimulus-moo chequepoint"}, "is not a checkpoint of stimulus-moo"),
        ({"step": "1"}, "is not a checkpoint of stimulus-moo"),
    ],
)
def test_kind_and_version_must_fit(entries: dict[str, Any], message: str, tmp_path: Path) -> None:
    checkpoint.save(tmp_path, state(1), keep=1)
    (path,) = checkpoint.files(tmp_path)
    changed = torch.load(path, weights_only=True) | entries
    torch.save(changed, path)
    checkpoint.checksum_file(path).unlink()
    with pytest.raises(StateMismatch, match=message):
        checkpoint.load(tmp_path)


def test_fit_keeps_as_many_as_asked(tmp_path: Path) -> None:
    x = torch.randn(16, 2)

    def run(**options: Any) -> None:
        model = torch.nn.Linear(2, 2)
        fit(model, lambda m, b: m(b).square().mean(0), x, lr=0.01, steps=10, checkpoint=tmp_path, **options)

    run(checkpoint_every=2, checkpoint_keep=3)
    assert [path.name[11:20] for path in checkpoint.files(tmp_path)] == ["000000010", "000000008", "000000006"]
    with pytest.raises(InvalidOption, match="checkpoint_keep must be a positive integer, found 0"):
        run(checkpoint_keep=0, resume=True)


class TestWriteWhole:
    def test_a_failure_leaves_the_old_file_and_nothing_else(self, tmp_path: Path) -> None:
        path = tmp_path / "a"
        path.write_bytes(b"old")

        def fails(file: Any) -> None:
            file.write(b"half of the new")
            raise OSError(28, "No space left on device")

        with pytest.raises(OSError, match="No space"):
            write_whole(path, fails)
        assert path.read_bytes() == b"old"
        assert os.listdir(tmp_path) == ["a"]

    def test_a_folder_that_goes_away_is_an_error_of_its_own(self, tmp_path: Path) -> None:
        folder = tmp_path / "gone"
        folder.mkdir()

        def fails(file: Any) -> None:
            for path in folder.iterdir():
                path.unlink()
            folder.rmdir()

        with pytest.raises(NotWritten, match=r"could not be written .No such file"):
            write_whole(folder / "a", fails)

    def test_others_may_read_it_as_the_umask_says(self, tmp_path: Path) -> None:
        (tmp_path / "plain").write_bytes(b"")
        write_whole(tmp_path / "whole", lambda file: file.write(b"x"))
        assert (tmp_path / "whole").stat().st_mode == (tmp_path / "plain").stat().st_mode


class TestForeignStates:
    """Whole checkpoints, with the right checksum, of something that does not fit."""

    def losses(self, model: Any, batch: Any) -> Any:
        return model(batch).square().mean(0)

    def run(self, folder: Path, model: torch.nn.Module, **options: Any) -> Any:
        x = torch.randn(16, 2, generator=torch.Generator().manual_seed(0))
        return fit(model, self.losses, x, lr=0.01, steps=6, checkpoint=folder, checkpoint_every=2, **options)

    @pytest.mark.parametrize(
        "change",
        [
            lambda state: state.pop("settings"),
            lambda state: state.pop("random"),
            lambda state: state.update(model={"weight": 3}),
            lambda state: state["model"].pop("bias"),
            lambda state: state.update(optimizer=None),
            lambda state: state.update(history={"counts": 1}),
            lambda state: state.update(multigradient=[]),
            lambda state: state["random"].update(cpu=torch.zeros(3)),
        ],
    )
    def test_they_are_refused_and_the_model_is_as_it_was(self, tmp_path: Path, change: Any) -> None:
        self.run(tmp_path, torch.nn.Linear(2, 2))
        for path in checkpoint.files(tmp_path):
            state = checkpoint.read(path)
            change(state)
            path.unlink()
            checkpoint.save(tmp_path, state, keep=9)
        model = torch.nn.Linear(2, 2)
        before, random = [p.detach().clone() for p in model.parameters()], torch.get_rng_state()
        with pytest.raises(StateMismatch):
            self.run(tmp_path, model, resume=True)
        assert all(torch.equal(p, old) for p, old in zip(model.parameters(), before, strict=True))
        assert torch.equal(torch.get_rng_state(), random)


def test_two_runs_on_one_folder_are_told_apart(tmp_path: Path) -> None:
    """The second is refused while the first runs, whatever it is called with, and nothing of the first is lost."""

    def losses(model: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
        return model(x).square().mean(0)

    def run(**options: Any) -> Any:
        model = torch.nn.Linear(2, 2)
        return fit(model, losses, torch.ones(8, 2), method="smgd", lr=0.1, steps=3, checkpoint=tmp_path, **options)

    def again(_: Any) -> None:
        for resume in (False, True):
            with pytest.raises(InvalidOption, match=r"no other run uses, found .* in use by another process"):
                run(resume=resume)

    assert run(callbacks=[again]).steps == 3
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "checkpoint-000000003.pt",
        "checkpoint-000000003.pt.sha256",
    ]
    assert run(resume=True).steps == 3  # the lock went with the run


def test_a_failed_run_releases_its_folder(tmp_path: Path) -> None:
    def losses(model: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
        raise KeyError("planned")

    for _ in range(2):
        with pytest.raises(KeyError):
            fit(torch.nn.Linear(2, 2), losses, torch.ones(8, 2), method="smgd", lr=0.1, steps=3, checkpoint=tmp_path)
        assert list(tmp_path.iterdir()) == []
