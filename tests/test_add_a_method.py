"""The page *How to add a method*, followed to the letter with its own code: the tests of every method pass."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import stimulus_moo
from stimulus_moo import plugins
from stimulus_moo.lab.report.palette import styles_for
from tests import database
from tests.database import ENGINES, MethodInfo, check_complete
from tests.properties import (
    Fault,
    check_deterministic,
    check_engine,
    check_equals_twin,
    check_failed_step_never_happened,
    check_frozen_parameters,
    check_micro_batch,
    check_nan_never_enters,
    check_one_objective,
    check_permutation,
    check_resumes,
    check_silent_safeguard,
)
from tests.test_docs import DOCS, blocks, start


@pytest.fixture(scope="module")
def page() -> Iterator[dict[str, Any]]:
    """Run the page, which adds its row; add its entries and its estimator as the page says."""
    before, weightings, names = dict(stimulus_moo.METHODS), dict(stimulus_moo.WEIGHTINGS), start()
    for block in blocks(DOCS / "add-a-method.md"):
        exec(compile(block, "add-a-method.md", "exec"), names)
    del stimulus_moo.METHODS["imtl-adam"]  # the page's plug-in, which is not part of the repository
    entry, estimator = names["method_entry"], names["estimator_entry"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(database.METHODS, entry.name, entry)
        patch.setitem(database.ESTIMATORS, estimator.name, estimator)
        patch.setattr(stimulus_moo, "AnchoredStorm", names["AnchoredStorm"], raising=False)
        patch.setattr(stimulus_moo, "__all__", [*stimulus_moo.__all__, "AnchoredStorm"])
        yield names
    stimulus_moo.METHODS.clear()
    stimulus_moo.METHODS.update(before)
    stimulus_moo.WEIGHTINGS.clear()
    stimulus_moo.WEIGHTINGS.update(weightings)


@pytest.fixture
def entry(page: dict[str, Any]) -> MethodInfo:
    found: MethodInfo = page["method_entry"]
    return found


@pytest.mark.usefixtures("page")
def test_the_database_is_complete() -> None:
    check_complete()


@pytest.mark.parametrize("engine", ["rowwise", "batched", "rowwise, in place"])
def test_it_equals_its_twin(entry: MethodInfo, engine: str) -> None:
    check_equals_twin(entry, ENGINES[engine])


@pytest.mark.parametrize(
    "check",
    [
        check_deterministic,
        check_resumes,
        check_permutation,
        check_one_objective,
        check_frozen_parameters,
        check_silent_safeguard,
    ],
)
def test_it_has_the_properties(entry: MethodInfo, check: Any) -> None:
    check(entry)


def test_it_survives_failures_and_pieces(entry: MethodInfo) -> None:
    for kind in Fault.KINDS:
        check_failed_step_never_happened(entry, kind)
    check_nan_never_enters(entry, ENGINES["rowwise"])
    check_micro_batch(entry, 5)


def test_its_estimator_takes_the_same_path_in_every_engine(page: dict[str, Any]) -> None:
    check_engine(page["estimator_entry"], ENGINES["batched"])


@pytest.mark.usefixtures("page")
def test_reports_draw_it() -> None:
    styles = styles_for([("stimulus", ""), ("anchored-storm", "")])
    assert styles[0].light != styles[1].light


@pytest.mark.usefixtures("page")
def test_its_plugin_is_a_file_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (rule,) = [block for block in blocks(DOCS / "add-a-method.md") if "class EqualProjections" in block]
    (rows,) = [block for block in blocks(DOCS / "add-a-method.md") if "WEIGHTINGS[" in block]
    (tmp_path / "mine.py").write_text(f"{rule}\n{rows}")
    monkeypatch.delitem(stimulus_moo.WEIGHTINGS, "equal-projections")
    plugins.load_file(tmp_path / "mine.py")
    assert type(stimulus_moo.WEIGHTINGS["equal-projections"]()).__name__ == "EqualProjections"
    assert stimulus_moo.METHODS.pop("imtl-adam").title == "IMTL-G, Adam"
