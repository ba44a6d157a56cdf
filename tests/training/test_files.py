"""The atomic writer: links are replaced, and only temporary files of its own making are ever removed."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from stimulus_moo import InvalidOption, StateMismatch, fit
from stimulus_moo.training import files
from tests.foreign_files import OURS, check_untouched, plant


def train(folder: Path, **options: Any) -> Any:
    torch.manual_seed(0)
    x = torch.randn(16, 2)
    arguments = {"method": "smgd", "lr": 0.1, "steps": 2, "progress": False, **options}
    return fit(torch.nn.Linear(2, 2), lambda m, b: m(b).square().mean(0), x, checkpoint=folder, **arguments)


def test_temporary_files_have_names_of_their_own(tmp_path: Path) -> None:
    seen: list[str] = []

    def write(file: Any) -> None:
        seen.extend(path.name for path in tmp_path.iterdir())
        file.write(b"x")

    for _ in range(3):
        files.write_whole(tmp_path / "settings.json", write)
    names = {name for name in seen if name != "settings.json"}
    assert len(names) == 3
    assert all(re.fullmatch(r"\.stimulus-moo-[0-9a-f]{32}\.tmp", name) for name in names)
    assert [path.name for path in tmp_path.iterdir()] == ["settings.json"]


def test_a_long_name_can_be_written(tmp_path: Path) -> None:
    path = tmp_path / ("n" * 255)
    files.write_whole(path, lambda file: file.write(b"x"))
    assert path.read_bytes() == b"x"


def linked(folder: Path, content: str | None) -> tuple[Path, Path]:
    """A file with this content, or none where it is None, and a symbolic link to it."""
    target, link = folder / "target", folder / "link"
    if content is not None:
        target.write_text(content)
    link.symlink_to(target)
    return target, link


@pytest.mark.parametrize("dangling", [False, True])
def test_a_link_is_replaced_and_its_target_kept(tmp_path: Path, dangling: bool) -> None:
    target, link = linked(tmp_path, None if dangling else "not ours")
    files.write_whole(link, lambda file: file.write(b"ours"))
    assert (link.is_symlink(), link.read_text()) == (False, "ours")
    assert not target.exists() if dangling else target.read_text() == "not ours"


@pytest.mark.parametrize("dangling", [False, True])
def test_appending_replaces_a_link_by_a_copy(tmp_path: Path, dangling: bool) -> None:
    target, link = linked(tmp_path, None if dangling else "before\n")
    descriptor = files.open_for_appending(link)
    os.write(descriptor, b"after\n")
    os.close(descriptor)
    assert (link.is_symlink(), link.read_text()) == (False, "after\n" if dangling else "before\nafter\n")
    assert not target.exists() if dangling else target.read_text() == "before\n"


def test_only_temporary_files_of_this_library_are_removed(tmp_path: Path) -> None:
    plant(tmp_path / "in", tmp_path / "target")
    files.remove_leftovers(tmp_path / "in")
    check_untouched(tmp_path / "in", tmp_path / "target")
    assert not (tmp_path / "in" / OURS).exists()


def test_fit_removes_nothing_of_others_from_a_new_checkpoint_folder(tmp_path: Path) -> None:
    plant(tmp_path / "in", tmp_path / "target")
    train(tmp_path / "in")
    check_untouched(tmp_path / "in", tmp_path / "target")
    assert not (tmp_path / "in" / OURS).exists()


def test_fit_removes_its_leftovers_only_after_it_accepted_the_checkpoint(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    train(folder)
    plant(folder, tmp_path / "target")
    with pytest.raises(InvalidOption, match="folder without checkpoints"):
        train(folder)
    with pytest.raises(StateMismatch, match="lr"):
        train(folder, lr=0.2, resume=True)
    assert (folder / OURS).exists()
    train(folder, steps=3, resume=True)
    assert not (folder / OURS).exists()
    check_untouched(folder, tmp_path / "target")
    assert (folder / "checkpoint-000000003.pt").exists()


def test_checkpoints_replace_links(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_text("not ours")
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "checkpoint-000000002.pt.sha256").symlink_to(target)
    train(folder)
    assert target.read_text() == "not ours"
    assert not (folder / "checkpoint-000000002.pt.sha256").is_symlink()
