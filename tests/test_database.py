"""The database is complete, and adding a method is a rule, a row, a twin and an entry."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import stimulus_moo
from stimulus_moo import Estimator, Method, MinNorm, Update
from stimulus_moo.methods import sgd
from tests import database
from tests.database import BACKEND, ENGINES, STAGED_ENTRIES, MethodInfo, Run, check_complete
from tests.properties import (
    check_equals_twin,
)
from tests.reference.twins import Record, at, min_norm

# 1. The rule: the mean of all mini-batch gradients so far.


class RunningMean(Estimator):
    """u_t = (t u_{t-1} + grad f_A(x_t)) / (t + 1)."""

    remembers = True

    def update(self, t: int) -> Update:
        return Update(keep=t / (t + 1), now=1 / (t + 1))


# 2. The row.

ROW = Method("running-mean", "Running mean", lambda s: RunningMean(), lambda s: MinNorm(), sgd)


# 3. The twin.


def running_mean(problem: Any, x0: Any, *, steps: int, lr: Any, batches: Any) -> Any:
    record = Record(x0)
    x = record.x[0]
    seen: list[np.ndarray] = []
    for t in range(steps):
        seen.append(problem.gradients(x, batches[t]))
        u = np.mean(seen, axis=0)
        weights = min_norm(u)
        d = weights @ u
        x = x - at(lr, t) * d
        record.add(u, weights, d, x, samples=len(batches[t]), gradients=len(batches[t]))
    return record.trajectory()


# 4. The entry.

ENTRY = MethodInfo("running-mean", running_mean)


@pytest.fixture
def row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(stimulus_moo.METHODS, ROW.name, ROW)


@pytest.fixture
def entry(monkeypatch: pytest.MonkeyPatch) -> MethodInfo:
    monkeypatch.setitem(database.METHODS, ENTRY.name, ENTRY)
    return ENTRY


@pytest.mark.usefixtures("row")
def test_a_row_without_an_entry_is_found() -> None:
    with pytest.raises(AssertionError, match=r"methods without an entry: \{'running-mean'\}"):
        check_complete()


@pytest.mark.usefixtures("entry")
def test_an_entry_without_a_row_is_found() -> None:
    with pytest.raises(AssertionError, match=r"entries without a method: \{'running-mean'\}"):
        check_complete()


@pytest.mark.parametrize(
    ("table", "name", "message"),
    [
        ("ESTIMATORS", "filtered", r"Estimator without an entry: \{<class '.*Filtered'>\}"),
        ("ENGINES", "auto", r"engines without an entry: \{'auto'\}"),
    ],
)
def test_a_missing_class_or_engine_is_found(
    table: str, name: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(getattr(database, table), name)
    with pytest.raises(AssertionError, match=message):
        check_complete()


def test_a_public_weighting_without_an_entry_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    class Last(stimulus_moo.Weighting):
        def __call__(self, gramian: Any) -> Any:
            return gramian[-1]

    monkeypatch.setattr(stimulus_moo, "Last", Last, raising=False)
    monkeypatch.setattr(stimulus_moo, "__all__", [*stimulus_moo.__all__, "Last"])
    with pytest.raises(AssertionError, match=r"Weighting without an entry: .*Last"):
        check_complete()


@pytest.mark.usefixtures("row")
class TestAddingAMethod:
    """``tests/test_add_a_method.py`` tests the properties of the method that the page adds."""

    def test_the_database_is_complete(self, entry: MethodInfo) -> None:
        check_complete()

    def test_fit_knows_it(self, entry: MethodInfo) -> None:
        problem = entry.problem()
        model = problem.model()
        result = stimulus_moo.fit(
            model, problem.losses, problem.columns, method="running-mean", lr=0.1, steps=20, progress=False
        )
        assert (result.method, result.samples) == ("running-mean", 20 * 8)
        before = problem.losses(problem.model(), problem.columns)
        assert all(new < old for new, old in zip(result.losses, before.tolist(), strict=True))

    def test_a_twin_of_another_rule_is_told_from_it(self, entry: MethodInfo) -> None:
        wrong = MethodInfo("running-mean", database.METHODS["smgd"].twin)
        with pytest.raises(AssertionError):
            check_equals_twin(wrong, ENGINES["rowwise"])


@pytest.mark.parametrize("name", ENGINES)
def test_an_engine_is_used_as_its_entry_says_and_set_back(name: str) -> None:
    before = values()
    with ENGINES[name].used() as option:
        staged, backend = values()
        assert (staged == 0) == ENGINES[name].in_place
        assert (backend == "aot_eager") == (option == "compiled")
    assert values() == before


def values() -> tuple[Any, Any]:
    """The two private settings that the entries of engines replace."""
    found = []
    for name in (STAGED_ENTRIES, BACKEND):
        module, _, attribute = name.rpartition(".")
        found.append(getattr(__import__(module, fromlist=[attribute]), attribute))
    return found[0], found[1]


def test_a_run_records_its_path_and_its_steps() -> None:
    run = Run(database.METHODS["smgd"]).run(3)
    assert run.path.shape == (4, 5)
    assert [step.anchored for step in run.steps] == [False] * 3
