"""The documentation holds: its Python runs, its commands parse, its links lead somewhere, and every page is reachable.

Code of a page runs from top to bottom in one namespace, which starts with what *Get started* has built: ``model``,
``losses``, ``data``, ``loader``, ``mg`` and ``optimizer``, and what it has imported. Budgets are cut to a hundredth.
"""

from __future__ import annotations

import logging
import pickle
import re
import shlex
import socket
from pathlib import Path
from typing import Any

import pytest
import torch

import stimulus_moo
import tests.database  # noqa: F401  # it checks the table when it is imported: before a page adds a row
from stimulus_moo import METHODS, WEIGHTINGS, errors
from stimulus_moo._engine.store import STAGED_ENTRIES

CHECKED = True  # what users are shown gives no warnings
ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(path for path in DOCS.rglob("*.md") if "_build" not in path.parts)
OTHERS = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")]
NEEDED = {"docs/guides/torchjd.md": "torchjd", "docs/guides/logging.md": "tensorboard", "docs/ranking.md": "moocore"}


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def blocks(path: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", text_of(path), re.DOTALL | re.MULTILINE)


def start() -> dict[str, Any]:
    """Return the names that a page may take for granted."""
    names: dict[str, Any] = {"fit": stimulus_moo.fit}  # its last block imports that
    first, second = blocks(DOCS / "get-started.md")[:2]
    exec(first, names)
    exec(second, names)
    return names


@pytest.mark.parametrize("path", [path for path in PAGES if blocks(path)], ids=name_of)
def test_python_of_a_page_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if name_of(path) in NEEDED:
        pytest.importorskip(NEEDED[name_of(path)])
    monkeypatch.chdir(tmp_path)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    for name, value in {"RANK": 0, "WORLD_SIZE": 1, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}.items():
        monkeypatch.setenv(name, str(value))  # a page may join the processes: here it is one
    monkeypatch.setattr(logging.getLogger("stimulus_moo"), "level", logging.NOTSET)
    names, tables = {} if path.stem == "get-started" else start(), [(t, dict(t)) for t in (METHODS, WEIGHTINGS)]
    try:
        for block in blocks(path):
            exec(compile(block.replace("100_000", "1_000"), name_of(path), "exec"), names)
    finally:
        for table, before in tables:
            table.clear()
            table.update(before)
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()


def commands(path: Path) -> list[str]:
    """Return every ``stimulus-moo ...`` of a page, in a block or between backticks, without its comment."""
    text = text_of(path)
    found = re.findall(r"^(?: {4}|\$ )(?:torchrun .*-m )?(stimulus[-_]moo .*)$", text, re.MULTILINE)
    found += re.findall(r"`(stimulus-moo [^`]*)`", text)
    whole = [" ".join(command.split("#")[0].split()) for command in found]
    # "..." and names in capitals or braces stand for something the reader fills in
    return [command for command in whole if not re.search(r"\.\.\.|\||[{}]|\b[A-Z]{3,}\b|\\$", command)]


@pytest.mark.parametrize("path", [*PAGES, *OTHERS], ids=name_of)
def test_commands_of_a_page_parse(path: Path) -> None:
    typer = pytest.importorskip("typer")
    from stimulus_moo.lab.cli import app

    for command in commands(path):
        arguments = shlex.split(re.sub(r" --plugin \S+", "", command))[1:]  # the one option before a command
        group = typer.main.get_command(app)
        with group.make_context("stimulus-moo", [], resilient_parsing=True) as context:
            while arguments and hasattr(group, "resolve_command"):
                name, group, arguments = group.resolve_command(context, arguments)
            if arguments:
                group.make_context(name, arguments, parent=context)  # raises where an option is unknown


def anchors(path: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub and myst make them."""
    text = re.sub(r"^```.*?^```", "", text_of(path), flags=re.DOTALL | re.MULTILINE)
    found = set()
    for heading in re.findall(r"^#{1,6} +(.*)$", text, re.MULTILINE):
        plain = re.sub(r"[^\w\- ]", "", heading.lower())
        found.add(plain.strip().replace(" ", "-"))
    return found | set(re.findall(r"^\(([\w-]+)\)=$", text, re.MULTILINE))


@pytest.mark.parametrize("path", [*PAGES, *OTHERS], ids=name_of)
def test_links_of_a_page_lead_somewhere(path: Path) -> None:
    text = re.sub(r"^```.*?^```", "", text_of(path), flags=re.DOTALL | re.MULTILINE)
    targets = re.findall(r"\]\(([^)\s]+)\)", text) + re.findall(r'(?:src|srcset|href)="([^"]+)"', text)
    for target in targets:
        if target.startswith(errors.DOCS):
            there, anchor = page_of(target)
        elif target.startswith(("https://", "http://", "mailto:")):
            continue
        else:
            file, _, anchor = target.partition("#")
            there = (path.parent / file).resolve() if file else path
        assert there.exists(), f"{name_of(path)}: {target}"
        assert not anchor or anchor in anchors(there), f"{name_of(path)}: {target}"


def page_of(url: str) -> tuple[Path, str]:
    """Return the page and the anchor that a URL of the site stands for."""
    assert url.startswith(errors.DOCS), url
    page, _, anchor = url.removeprefix(errors.DOCS).partition("#")
    return DOCS / page.replace(".html", ".md"), anchor


def test_pages_that_the_code_names_exist() -> None:
    """Messages name pages as ``DOCS + "page.html#anchor"`` or ``{DOCS}page.html``."""
    named = [
        (source.name, errors.DOCS + page)
        for source in (ROOT / "src").rglob("*.py")
        for page in re.findall(r"DOCS(?:\}| \+ \")([\w/-]+\.html(?:#[\w-]+)?)", text_of(source))
    ]
    assert len(named) > 10
    for source, url in named:
        page, anchor = page_of(url)
        assert page.exists(), f"{source} names {url}"
        assert not anchor or anchor in anchors(page), f"{source} names {url}"


def test_no_message_points_into_the_repository() -> None:
    """An installed wheel has no docs folder."""
    for source in (ROOT / "src").rglob("*.py"):
        assert not re.findall(r"see docs/|docs/[\w/-]+\.md#", text_of(source)), source


def test_every_page_is_reachable_from_the_index() -> None:
    reached: set[Path] = set()
    waiting = [DOCS / "index.md"]
    while waiting:
        page = waiting.pop()
        if page in reached:
            continue
        reached.add(page)
        for tree in re.findall(r"^```\{toctree\}\n(.*?)^```", text_of(page), re.DOTALL | re.MULTILINE):
            entries = [line.strip() for line in tree.splitlines() if line.strip() and not line.startswith(":")]
            plain = [re.sub(r"^.*<(.*)>$", r"\1", entry) for entry in entries]
            waiting += [(page.parent / f"{entry}.md").resolve() for entry in plain]
    assert set(PAGES) - reached == set()


def test_every_error_names_its_page_below_the_message() -> None:
    kinds = [stimulus_moo.StimulusError]
    for kind in kinds:
        kinds += kind.__subclasses__()
        page, anchor = page_of(kind.page)
        assert page.exists(), kind
        assert not anchor or anchor in anchors(page), kind
    error = pickle.loads(pickle.dumps(stimulus_moo.InvalidLosses("found one")))
    assert str(error) == "found one"
    assert error.__notes__ == [f"see {errors.DOCS}guides/own-loop.html#what-losses-must-return"]


def test_every_public_name_is_in_the_reference() -> None:
    reference = text_of(DOCS / "api.md")
    listed = {name for name in stimulus_moo.__all__ if name in vars(errors)}  # automodule has them all
    missing = {name for name in stimulus_moo.__all__ if f":: stimulus_moo.{name}\n" not in reference}
    assert missing - listed == set()


def test_every_experiment_and_study_is_on_the_page_of_the_lab() -> None:
    pytest.importorskip("typer")
    from stimulus_moo.lab.experiments import EXPERIMENTS
    from stimulus_moo.lab.studies import STUDIES

    page = text_of(DOCS / "lab.md")
    assert [name for name in (*EXPERIMENTS, *STUDIES) if f"| `{name}` |" not in page] == []


@pytest.mark.parametrize(
    "page",
    ["caveats.md", "hands-free.md", "performance.md", "reliability.md", "guides/memory.md", "guides/own-loop.md"],
)
def test_pages_say_up_to_which_size_a_failed_step_is_undone(page: str) -> None:
    assert f"{STAGED_ENTRIES:,} entries" in " ".join(text_of(DOCS / page).split())
