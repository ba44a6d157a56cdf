"""The page of the reproduction."""

from __future__ import annotations

from pathlib import Path

import pytest

from stimulus_moo.lab.report.claims import CLAIMS
from stimulus_moo.lab.report.reproduction import BEYOND, verdict, write_page
from stimulus_moo.lab.studies import STUDIES


def test_the_page_needs_no_runs_at_all(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    write_page(tmp_path / "runs", tmp_path / "page.md")
    text = (tmp_path / "page.md").read_text(encoding="utf-8")
    assert "Details the paper leaves open" in text
    assert text.count("**Not run yet**") == len(CLAIMS) + len(STUDIES) - len(BEYOND)


@pytest.mark.parametrize(
    ("found", "said"),
    [
        ([True, False], "holds"),
        ([False, True], "holds with another step size"),
        ([False, False], "does not hold"),
        ([False, None], "not run yet"),
        (["not shown", "not shown"], "not shown"),
        ([False, "not shown"], "does not hold"),
        (["not shown", True], "holds with another step size"),
    ],
)
def test_verdict(found: list[bool], said: str) -> None:
    assert verdict(found) == said
