"""Claims, the reproduction page and tuning: verdicts follow from numbers, whichever way they fall."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import pytest

from stimulus_moo.lab import reproduce
from stimulus_moo.lab.report.claims import CLAIMS, alike, counts, lower
from stimulus_moo.lab.report.groups import Group, group_runs
from stimulus_moo.lab.report.reproduction import BEYOND, verdict, write_page
from stimulus_moo.lab.runs.reading import RecordedRun
from stimulus_moo.lab.runs.tuning import tune
from stimulus_moo.lab.studies import STUDIES
from tests.lab.fake_lab import TINY
from tests.lab.fake_lab import catalogue as fake_catalogue

METHODS = ("mgd", "smgd", "moco", "stimulus", "stimulus-m", "stimulus+", "stimulus-m+")


def group(losses: dict[str, float], gradients: dict[str, int] | None = None) -> Group:
    runs = []
    for method, loss in losses.items():
        count = (gradients or {}).get(method, 100)
        record = {"step": 9, "samples": count, "gradients": count, "losses": [loss], "weights": [1.0], "sq_norm": 1.0}
        record.update(stationarity=0.1, full_losses=[loss])
        summary = {**record, "method": method, "seconds": 1.0, "diverged": False}
        settings = {"experiment": "x", "method": method, "seed": 0, "lr": 0.1, "tasks": ["only"]}
        runs.append(RecordedRun("x", method, 0, settings, [record], summary, Path("x")))
    return group_runs(runs)[0]


def test_lower_compares_the_worst_of_one_side_with_the_best_of_the_other() -> None:
    rule = lower(("stimulus", "mgd"), ("smgd", "moco"))
    assert rule(group({"stimulus": 0.1, "mgd": 0.2, "smgd": 0.3, "moco": 0.4})).holds
    found = rule(group({"stimulus": 0.1, "mgd": 0.35, "smgd": 0.3, "moco": 0.4}))
    assert not found.holds
    assert "MGD 0.35" in found.figures
    assert rule(group({"stimulus": 0.1, "mgd": 0.1})).holds is None  # nothing to compare with


def test_alike_is_a_ratio() -> None:
    assert alike("mgd", "stimulus", 0.05)(group({"mgd": 1.0, "stimulus": 1.04})).holds
    assert not alike("mgd", "stimulus", 0.05)(group({"mgd": 1.0, "stimulus": 1.06})).holds


def test_counts_must_be_exact_and_the_others_fewer() -> None:
    rule = counts("gradients", {"mgd": 1000}, {"stimulus+": 500})
    losses = {"mgd": 1.0, "stimulus+": 1.0}
    assert rule(group(losses, {"mgd": 1000, "stimulus+": 499})).holds
    assert not rule(group(losses, {"mgd": 1001, "stimulus+": 499})).holds
    assert not rule(group(losses, {"mgd": 1000, "stimulus+": 500})).holds
    assert rule(group({"mgd": 1.0}, {"mgd": 1000})).holds is None


@pytest.mark.parametrize(
    ("found", "said"),
    [
        ([True, False], "holds"),
        ([False, True], "holds with another step size"),
        ([False, False], "does not hold"),
        ([False, None], "not run yet"),
    ],
)
def test_verdict(found: list[bool], said: str) -> None:
    assert verdict(found) == said


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


def test_the_page_needs_no_runs_at_all(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    write_page(tmp_path / "runs", tmp_path / "page.md")
    text = (tmp_path / "page.md").read_text(encoding="utf-8")
    assert "Details the paper leaves open" in text
    assert text.count("**Not run yet**") == len(CLAIMS) + len(STUDIES) - len(BEYOND)


def test_tuning_finds_the_best_and_extends_the_grid() -> None:
    told: list[str] = []
    settings = TINY.settings.override({"steps": 12})
    tuned = tune(TINY, "scalarisation", settings, seeds=(7,), grid=(0.001, 0.003, 0.01), report=told.append)
    assert tuned.best > 0.01  # the edge was left
    assert len(tuned.scores) == len(told) > 3
    assert tuned.scores[tuned.best] == min(tuned.scores.values())


def test_a_diverging_rate_is_infinitely_bad() -> None:
    settings = TINY.settings.override({"steps": 60})
    tuned = tune(TINY, "scalarisation", settings, seeds=(7,), grid=(0.1, 1e30))
    assert math.isinf(tuned.scores[1e30])
    assert tuned.best != 1e30
