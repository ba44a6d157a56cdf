"""``make reproduce``: it runs what is missing and writes its page."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from stimulus_moo.lab import reproduce
from stimulus_moo.lab.report.claims import CLAIMS
from tests.lab.fake_lab import TINY
from tests.lab.fake_lab import catalogue as fake_catalogue


def test_the_plan_runs_resumes_and_writes_its_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    experiments, studies = fake_catalogue()
    river = dataclasses.replace(TINY, name="riverflow", settings=TINY.settings.override({"steps": 4}))
    monkeypatch.setattr(reproduce, "EXPERIMENTS", {**experiments, "riverflow": river})
    monkeypatch.setattr(reproduce, "STUDIES", studies)
    parts = (
        reproduce.Part("riverflow", "paper", {"guard": False}),
        reproduce.Part("riverflow", "other-step", {"lr": 0.2, "guard": False}),
        reproduce.Part("riverflow", "guarded", methods=("smgd",)),
    )
    monkeypatch.setattr(reproduce, "PARTS", parts)
    page = tmp_path / "page.md"
    for _ in range(2):  # the second time everything is complete already
        reproduce.reproduce(tmp_path / "out", page, seeds=2, data=None, only=())
        text = page.read_text(encoding="utf-8")
    for claim in CLAIMS["riverflow"]:
        assert claim.text in text
    assert "*lr 0.05:*" in text
    assert "*lr 0.2:*" in text
    assert "not run yet" in text  # SMGD and others are missing
    assert "2 seeds, mean ± standard deviation" in text
    assert "Squares" in text
    assert "The data is synthetic." in text
    guarded = text[text.index("### lr 0.05, with the safeguard (not in the paper), 2 seeds") :].split("\n\n")[2]
    rows = [row.split(" | ")[0] for row in guarded.splitlines()[2:]]
    assert rows == ["| SMGD", "| Scalarisation, SGD", "| Scalarisation, Adam"]


def test_the_paper_runs_to_the_letter_and_under_the_guard() -> None:
    labels = {(part.experiment, part.label): part.changes.get("guard", True) for part in reproduce.PARTS}
    for name in CLAIMS:
        assert labels[name, "paper"] is False
        assert labels[name, "guarded"] is True


def test_an_unknown_part_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_page_called: list[Path] = []
    monkeypatch.setattr(reproduce, "write_page", lambda out, page: write_page_called.append(page))
    reproduce.reproduce(tmp_path, tmp_path / "p.md", seeds=1, data=None, only=("nothing",))
    assert write_page_called == [tmp_path / "p.md"]
    assert list(tmp_path.iterdir()) == []
