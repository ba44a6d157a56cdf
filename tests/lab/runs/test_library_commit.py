"""Which commit measured figures belong to: the last one that changed the library, lab and version number aside."""

import subprocess
from pathlib import Path

import pytest

import stimulus_moo
from stimulus_moo.lab.runs.directory import versions
from stimulus_moo.lab.runs.library_commit import library_commit


@pytest.fixture
def package(tmp_path, monkeypatch):
    """The folder of a package in place of the installed one."""
    folder = tmp_path / "src" / "package"
    (folder / "lab").mkdir(parents=True)
    monkeypatch.setattr(stimulus_moo, "__file__", str(folder / "__init__.py"))
    library_commit.cache_clear()
    yield folder
    library_commit.cache_clear()


def git(folder: Path, *arguments: str) -> str:
    person = ("-c", "user.name=test", "-c", "user.email=test@localhost", "-c", "commit.gpgsign=false")
    command = ["git", "-C", str(folder), *person, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def commit(folder: Path, name: str, text: str) -> str:
    (folder / name).write_text(text)
    git(folder, "add", "-A", ":/")
    git(folder, "commit", "-q", "-m", f"change {name}")
    library_commit.cache_clear()
    return git(folder, "rev-parse", "HEAD")[:7]


def test_commits_that_leave_the_library_alone_do_not_count(package):
    git(package.parents[1], "init", "-q")
    first = commit(package, "fit.py", "1")
    assert library_commit() == first
    for name in ("lab/page.py", "__init__.py", "../../README.md"):
        commit(package, name, "1")
        assert library_commit() == first
        assert versions()["commit"] == first
    second = commit(package, "fit.py", "2")
    assert library_commit() == second != first


def test_a_changed_library_is_told(package):
    git(package.parents[1], "init", "-q")
    first = commit(package, "fit.py", "1")
    (package / "lab" / "page.py").write_text("2")
    library_commit.cache_clear()
    assert library_commit() == first
    (package / "fit.py").write_text("2")
    library_commit.cache_clear()
    assert library_commit() == f"{first} with changes"


def test_without_a_repository_there_is_none(package):
    assert library_commit() is None
    assert "commit" not in versions()
