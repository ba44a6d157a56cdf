"""The README's examples run as they stand, and its table is the table of the code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from stimulus_moo import METHODS, errors

CHECKED = True  # what users are shown gives no warnings
README = Path(__file__).parents[1] / "README.md"


def test_examples_run_in_order(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torchjd")
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) >= 3
    names: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, str(README), "exec"), names)
    assert "tensor" in capsys.readouterr().out
    assert max(names["result"].losses) < 0.5


def test_every_method_is_in_the_table() -> None:
    table = README.read_text(encoding="utf-8")
    assert [name for name in METHODS if f"`{name}`" not in table] == []


def test_links_work_on_the_package_index() -> None:
    """The index shows the README without the repository's files, so links are URLs of the site."""
    targets = re.findall(r"\]\(([^)\s]+)\)", README.read_text(encoding="utf-8"))
    assert [target for target in targets if not target.startswith(errors.DOCS)] == []
