"""Folders with files of others: the lab removes none of them, and writes through no symbolic link."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure
from typer.testing import CliRunner

from stimulus_moo import StateMismatch
from stimulus_moo.lab import cli, reproduce
from stimulus_moo.lab.cli import arguments
from stimulus_moo.lab.report import figures, write_report
from stimulus_moo.lab.runs import RunError
from tests.foreign_files import OURS, check_untouched, plant
from tests.lab import fake_lab
from tests.lab.fake_runs import fake_runs, fake_study, store


@pytest.fixture(autouse=True)
def tiny_lab(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    experiments, studies = fake_lab.catalogue()
    quick = dataclasses.replace(
        fake_lab.TINY, name="riverflow", settings=fake_lab.TINY.settings.override({"steps": 2}), methods=("mgd",)
    )
    monkeypatch.setattr(arguments, "catalogue", fake_lab.catalogue)
    monkeypatch.setattr(reproduce, "EXPERIMENTS", {**experiments, "riverflow": quick})
    monkeypatch.setattr(reproduce, "STUDIES", studies)
    monkeypatch.setattr(reproduce, "PARTS", (reproduce.Part("riverflow", "paper"),))
    monkeypatch.chdir(tmp_path)


def call(*given: object, code: int = 0) -> str:
    result = CliRunner().invoke(cli.app, [str(word) for word in given])
    assert result.exit_code == code, result.output
    return result.output


def again(folder: Path) -> None:
    reproduce.reproduce(folder, folder / "page.md", seeds=1, data=None, only=())


#: Each command with the folder below ``out`` that it writes to.
COMMANDS: dict[str, tuple[Callable[..., Any], str]] = {
    "run": (lambda out, *more: call("run", "tiny", "--quick", "--out", out, *more), "."),
    "study": (lambda out, *more: call("run", "squares", "--quick", "--out", out, *more), "."),
    "compare": (
        lambda out, *more: call("compare", "tiny", "--methods", "mgd", "--seeds", 1, "--quick", "--out", out, *more),
        "tiny/mgd/seed-0",
    ),
    "reproduce": (lambda out, *_: again(out), "paper/riverflow/mgd/seed-0"),
    "reproduced study": (lambda out, *_: again(out), "studies/squares"),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_only_leftovers_of_this_library_are_removed(name: str, tmp_path: Path) -> None:
    command, below = COMMANDS[name]
    folder, target = tmp_path / "out" / below, tmp_path / "target"
    plant(folder, target)
    command(tmp_path / "out")
    assert not (folder / OURS).exists()
    (folder / OURS).write_text("of a killed process")
    command(tmp_path / "out", "--resume")
    assert not (folder / OURS).exists()
    check_untouched(folder, target)


@pytest.mark.parametrize("name", ["run", "study", "compare"])
def test_a_refused_folder_keeps_everything(name: str, tmp_path: Path) -> None:
    command, below = COMMANDS[name]
    folder, target = tmp_path / "out" / below, tmp_path / "target"
    command(tmp_path / "out")
    plant(folder, target)
    words = {"run": ("run", "tiny"), "study": ("run", "squares"), "compare": ("compare", "tiny", "--methods", "mgd")}
    call(*words[name], "--out", tmp_path / "out", code=2)
    call(*words[name], "--out", tmp_path / "out", "--resume", code=2)  # without --quick: other settings
    (folder / "settings.json").unlink()
    call(*words[name], "--out", tmp_path / "out", code=2)
    assert (folder / OURS).read_text() == "ours"
    check_untouched(folder, target)


@pytest.fixture
def two_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reports have two empty figures, which are quick to draw."""
    empty = [("one", Figure((1, 1))), ("two", Figure((1, 1)))]
    monkeypatch.setattr(figures, "_figures", lambda groups, studies: empty)


@pytest.mark.usefixtures("two_figures")
def test_tune_and_report_remove_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    store(fake_runs(2, ("mgd",), 1, steps=20), [fake_study()], folder)
    (tmp_path / "cwd").mkdir()
    for place in (folder, folder / "figures", tmp_path / "cwd"):
        plant(place, tmp_path / "target")
    call("report", folder)
    os.chdir(tmp_path / "cwd")
    call("tune", "tiny", "--quick", "--methods", "mgd")
    for place in (folder, folder / "figures", tmp_path / "cwd"):
        assert (place / OURS).read_text() == "ours"
        check_untouched(place, tmp_path / "target")


# Links


def linked(files: list[Path], target: Path) -> None:
    """Replace files by links to a file of someone else."""
    target.write_text("not ours")
    for path in files:
        path.unlink(missing_ok=True)
        path.symlink_to(target)


def check_replaced(files: list[Path], target: Path) -> None:
    assert target.read_text() == "not ours"
    assert [path for path in files if path.is_symlink() or not path.stat().st_size] == []


@pytest.mark.usefixtures("two_figures")
def test_the_report_replaces_links_and_keeps_their_targets(tmp_path: Path) -> None:
    folder = store(fake_runs(2, ("mgd",), 1, steps=20), [fake_study()], tmp_path / "out")
    written = [write_report(folder), *(folder / "figures").iterdir()]
    before = {path: path.read_bytes() for path in written}
    assert len(written) == 5
    linked(written, tmp_path / "target")
    write_report(folder)
    check_replaced(written, tmp_path / "target")
    assert {path: path.read_bytes() for path in written} == before


def test_a_linked_folder_of_figures_is_refused(tmp_path: Path) -> None:
    folder = store(fake_runs(2, ("mgd",), 1, steps=20), [], tmp_path / "out")
    (tmp_path / "elsewhere").mkdir()
    (folder / "figures").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(RunError, match="figures is a symbolic link"):
        write_report(folder)
    assert list((tmp_path / "elsewhere").iterdir()) == []


#: Files that are not made anew in a folder without settings, but refused.
REFUSED = {"metrics.jsonl", "summary.json", "cells.jsonl", "study.json", ".stimulus-moo.lock"}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["run", "study", "compare", "reproduce"])
def test_a_new_run_writes_through_no_link(name: str, tmp_path: Path) -> None:
    """Every file that a run makes was a link to a missing file before; it is replaced, or the folder refused."""
    command, below = COMMANDS[name]
    command(tmp_path / "whole")
    made = {path.name for path in (tmp_path / "whole" / below).iterdir() if path.is_file()}
    refused = {file for file in made if file in REFUSED or file.endswith(".pt")}
    assert len(made - refused) >= 1
    for i, files in enumerate([made - refused, *({file} for file in refused)]):
        links, target = [tmp_path / f"out-{i}" / below / file for file in files], tmp_path / f"target-{i}"
        links[0].parent.mkdir(parents=True)
        for link in links:
            link.symlink_to(target)
        if files & refused:
            with pytest.raises((AssertionError, RunError, StateMismatch)):  # of ``call``: exit code 2
                command(tmp_path / f"out-{i}")
        else:
            command(tmp_path / f"out-{i}")
        assert {link.is_symlink() for link in links} == {bool(files & refused)}
        assert not target.exists()


def test_a_resumed_run_replaces_the_links_at_its_files(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    call("run", "tiny", "--quick", "--out", folder)
    whole = fake_lab.metrics(folder)
    for name in ("metrics.jsonl", "settings.json"):
        (folder / name).rename(tmp_path / name)
        (folder / name).symlink_to(tmp_path / name)
    before = {name: (tmp_path / name).read_bytes() for name in ("metrics.jsonl", "settings.json")}
    for path in (*folder.glob("checkpoint-*"), folder / "summary.json"):
        if "6" in path.name or path.name == "summary.json":
            path.unlink()
    call("run", "tiny", "--quick", "--out", folder, "--resume")
    assert fake_lab.metrics(folder) == whole
    for name, content in before.items():
        assert (tmp_path / name).read_bytes() == content
        assert not (folder / name).is_symlink()


def test_the_page_of_reproduce_replaces_a_link(tmp_path: Path) -> None:
    linked([tmp_path / "page.md"], tmp_path / "target")
    reproduce.reproduce(tmp_path / "out", tmp_path / "page.md", seeds=1, data=None, only=())
    check_replaced([tmp_path / "page.md"], tmp_path / "target")


def test_a_linked_lock_file_is_refused(tmp_path: Path) -> None:
    target = tmp_path / "target"
    (tmp_path / "out").mkdir()
    linked([tmp_path / "out" / ".stimulus-moo.lock"], target)
    assert "symbolic link" in call("run", "tiny", "--quick", "--out", tmp_path / "out", code=2)
    assert target.read_text() == "not ours"
