"""The checks behind docs/reliability.md: what counts as a failure, the page, the audit, and the soak in small."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import report
from reliability import audit, calls, disks, fuzz, kills, machine, page, soak
from reliability.__main__ import NAMES, main
from stimulus_moo import History

SOUND: dict[str, Any] = {
    "kills": (kills, [["at a write", 2, 25, 7, 0, 0, 0, "yes"]]),
    "disks": (disks, [["disk full", "x could not be written", 2, 2, "yes"], ["a second run", "in use", 2, "", ""]]),
    "calls": (calls, [["fit", 100, 40, 60, 0, 0]]),
    "machine": (machine, [["backward", 50000, 1200, 0]]),
    "fuzz": (fuzz, [["IDX", 20000, 50, 0]]),
    "soak": (soak, [["steps, minutes", "100,000", 30, "", "", ""], ["memory", "1 MB", "1 MB", "+0.1%", "1%", "yes"]]),
}
LOST: dict[str, list[list[object]]] = {
    "kills": [["a", 2, 25, 7, 1, 0, 0, "yes"], ["a", 2, 25, 7, 0, 0, 9, "yes"], ["a", 2, 25, 7, 0, 0, 0, "no: model"]],
    "disks": [["disk full", "nothing", 0, 2, "no: model"]],
    "calls": [["fit", 9, 4, 4, "1: TypeError", 0], ["fit", 9, 4, 5, 0, 1]],
    "machine": [["load", 70, 5, "1: seed 3: AssertionError"]],
    "fuzz": [["IDX", 7, 50, "1: MemoryError"]],
    "soak": [["memory", "1 MB", "2 MB", "+100%", "1%", "no"]],
}


def section(name: str, rows: list[list[object]]) -> report.Section:
    return report.section(SOUND[name][0], rows, 1.0, quick=False)


@pytest.mark.parametrize("name", NAMES)
def test_what_was_lost_is_a_failure(name: str) -> None:
    assert page.failures(name, section(name, SOUND[name][1])) == 0
    for row in LOST[name]:
        assert page.failures(name, section(name, [row])) == 1


def test_the_page_is_made_of_the_results(tmp_path: Path) -> None:
    for name in reversed(NAMES):
        page.save(tmp_path, tmp_path / "page.md", name, section(name, SOUND[name][1]), NAMES)
    text = (tmp_path / "page.md").read_text()
    assert [text.index(f"### {SOUND[name][0].TITLE}") for name in NAMES] == sorted(
        text.index(f"### {SOUND[name][0].TITLE}") for name in NAMES
    )
    for said in (
        "| kills survived | 25 |",
        "| bytes lost by them | 0 |",
        "| calls of the state machine compared | 50,000 |",
        "| files fuzzed | 20,000 |",
        "went wrong | 0 |",
    ):
        assert said in text
    assert set(json.loads((tmp_path / "results.json").read_text())["sections"]) == set(NAMES)


def test_the_page_in_docs_is_that_of_the_results() -> None:
    root = Path(page.__file__).parents[1]
    assert (root / "docs" / "reliability.md").read_text(encoding="utf-8") == page.render(
        report.load(root / "reliability")
    )


def test_unknown_checks_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["kils"])
    assert "there is no check 'kils'; there are kills" in capsys.readouterr().err


def test_the_audit_tells_what_it_finds_and_fails_only_when_strict(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    known = {"id": "CVE-1", "fix_versions": ["1.2"]}
    sick = {"dependencies": [{"name": "a", "version": "1.1", "vulns": [known]}, {"name": "b", "vulns": []}]}
    for answer, strict, usual, said in (
        (sick, 1, 0, "a 1.1: CVE-1, fixed in 1.2"),
        ({"dependencies": []}, 0, 0, "0 packages, no known vulnerability"),
        ("no network", 0, 0, "skipped, no network"),
    ):
        monkeypatch.setattr(audit, "ask", lambda answer=answer: answer)
        assert (audit.main(["--strict"]), audit.main([])) == (strict, usual)
        assert said in capsys.readouterr().out


def test_a_short_soak_leaks_no_handles_and_no_threads() -> None:
    seen = soak.watch(steps=600, minutes=0.0)
    early, late = seen.looks[120], seen.looks[-1]
    assert early[1:] == late[1:]
    assert all(value > 0 for value in seen.cpu)


def test_a_history_of_known_length_takes_its_memory_at_once() -> None:
    history = History()
    history.reserve(5000)
    taken = set()
    for step in range(5000):
        history.add(
            step=step, samples=1, gradients=1, losses=[0.5, 0.5], weights=[1.0, 0.0], sq_norm=0.1, anchored=False
        )
        taken.add(sum(column.nbytes for column in history._columns.values()))
    assert taken == {5000 * 65}
    history.add(step=5000, samples=1, gradients=1, losses=[0.5, 0.5], weights=[1.0, 0.0], sq_norm=0.1, anchored=True)
    assert (len(history), history["step"][-1], history.last()["anchored"]) == (5001, 5000, True)
