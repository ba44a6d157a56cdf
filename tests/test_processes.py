"""Copies, pickles, forked and spawned processes: a copy goes on as the original would, and does not disturb it."""

from __future__ import annotations

import copy
import multiprocessing
import os
import pickle
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import stimulus_moo as sm
from tests.harness import cut, data, differing, everything, same, train, two_heads, two_losses

BATCHES = cut(data(24), 6)


def estimators() -> dict[str, sm.Estimator]:
    anchor = cut(data(24), 12)
    return {
        "mini-batch": sm.MiniBatch(),
        "full": sm.Full(anchor),
        "recursive": sm.Recursive(anchor, 3),
        "auto": sm.Recursive(anchor, "auto"),
        "adaptive": sm.Recursive(sm.AdaptiveBatch(data(24), epsilon=0.1), 3),
        "page": sm.Page(anchor, 0.3),
        "storm": sm.Storm(0.2),
        "tracking": sm.Tracking(0.3),
        "filtered": sm.Filtered(),
    }


WEIGHTINGS = {
    "min-norm": sm.MinNorm(),
    "fixed": sm.Fixed([1.0, 2.0]),
    "smoothed": sm.Smoothed(sm.MinNorm(), 0.5),
    "projected": sm.ProjectedDescent(0.1),
}


def go_on(mg: sm.MultiGradient) -> tuple[Any, Any]:
    """What a worker does: three more steps; the path, and the state at its end."""
    path = train(mg, BATCHES[:3])
    return path, mg.state_dict()


def built(kind: str = "recursive", middle: nn.Module | None = None) -> sm.MultiGradient:
    mg = sm.MultiGradient(two_heads(middle), two_losses, estimators()[kind], sm.Smoothed(sm.MinNorm(), 0.5))
    train(mg, BATCHES[:2])
    return mg


@pytest.mark.parametrize("kind", estimators())
@pytest.mark.parametrize("how", ["copy", "pickle"])
def test_a_copy_goes_on_as_the_original(kind: str, how: str) -> None:
    mg = built(kind)
    other = copy.deepcopy(mg) if how == "copy" else pickle.loads(pickle.dumps(mg))
    before = everything(mg)
    found = go_on(other)
    assert differing(before, everything(mg)) == []  # the copy has its own model
    assert same(found, go_on(mg))


@pytest.mark.parametrize("name", [*estimators(), *WEIGHTINGS])
def test_estimators_and_weightings_can_be_pickled(name: str) -> None:
    part: Any = {**estimators(), **WEIGHTINGS}[name]
    again = pickle.loads(pickle.dumps(part))
    assert type(again) is type(part)
    assert same(again.state_dict(), part.state_dict())


def test_a_result_can_be_pickled() -> None:
    result = sm.fit(two_heads(), two_losses, data(24), lr=0.01, steps=4, progress=False)
    again = pickle.loads(pickle.dumps(result))
    assert (again.steps, again.losses, len(again.history)) == (result.steps, result.losses, 4)
    assert same(again.model.state_dict(), result.model.state_dict())


@pytest.mark.slow
def test_the_copy_of_a_compiled_object_compiles_for_its_own_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stimulus_moo._engine.compiled.BACKEND", "eager")
    mg = sm.MultiGradient(two_heads(), two_losses, sm.Storm(0.2), engine="compiled")
    train(mg, BATCHES[:2])
    assert mg.store.compiler._known
    for other in (copy.deepcopy(mg), pickle.loads(pickle.dumps(mg))):
        assert not other.store.compiler._known
        assert other.store.compiler.objective is other.objective
    assert same(go_on(copy.deepcopy(mg)), go_on(mg))


def test_a_copy_in_the_middle_of_a_step_is_refused() -> None:
    errors: list[Exception] = []

    def losses(model: Any, batch: Any) -> Any:
        try:
            copy.deepcopy(mg)
        except sm.ConcurrentUse as error:
            errors.append(error)
        return two_losses(model, batch)

    mg = sm.MultiGradient(two_heads(), losses, sm.MiniBatch())
    mg.backward(BATCHES[0])
    assert len(errors) == 1


@pytest.mark.parametrize("threshold", [1 << 16, 0])
def test_an_open_proposal_is_not_copied(threshold: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stimulus_moo._engine.store.STAGED_ENTRIES", threshold)
    mg = built("storm")
    proposal = mg.propose(BATCHES[2])
    for act in (copy.deepcopy, pickle.dumps):
        with pytest.raises(sm.NotCopyable, match="commit or discard"):
            act(mg)
    proposal.commit()
    assert same(go_on(pickle.loads(pickle.dumps(mg))), go_on(mg))


def test_an_attached_safeguard_is_not_copied_since_hooks_are_not() -> None:
    mg = built()
    optimizer = torch.optim.SGD(mg.objective.model.parameters(), lr=0.01)
    guard = sm.Safeguard(optimizer, mg)
    for one in (mg, guard):
        for act in (copy.deepcopy, pickle.dumps):
            with pytest.raises(sm.NotCopyable, match=r"detach\(\) first, or save state_dict\(\)"):
                act(one)
    guard.detach()
    assert same(go_on(copy.deepcopy(mg)), go_on(mg))


FORK = """
    import multiprocessing, sys
    import torch
    from tests.harness import same
    from tests.test_processes import built, go_on

    def child(mg, pipe):
        path, state = go_on(mg)
        pipe.send((path.tolist(), state["step"], state["samples"]))
        pipe.close()

    if __name__ == "__main__":
        kind = sys.argv[1]
        expected, state = go_on(built(kind, torch.nn.Dropout(0.2)))
        mg = built(kind, torch.nn.Dropout(0.2))
        context = multiprocessing.get_context("fork")
        here, there = context.Pipe(duplex=False)
        process = context.Process(target=child, args=(mg, there))
        process.start()
        found = here.recv()
        process.join(60)
        path, own = go_on(mg)
        assert process.exitcode == 0, process.exitcode
        assert found == (expected.tolist(), state["step"], state["samples"]), "the child"
        assert same((path, own), (expected, state)), "the parent"
        print("equal")
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["page"])
def test_a_forked_child_goes_on_and_does_not_disturb_its_parent(kind: str, tmp_path: Path) -> None:
    script = tmp_path / "fork.py"
    script.write_text(textwrap.dedent(FORK))
    root = Path(__file__).parents[1]
    paths = os.pathsep.join([str(root), str(Path(sm.__file__).parents[1])])
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": paths}
    run = subprocess.run(
        [sys.executable, str(script), kind], env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert (run.stdout, run.returncode) == ("equal\n", 0), run.stderr


def go_on_from(pickled: bytes) -> bytes:
    return pickle.dumps(go_on(pickle.loads(pickled)))


@pytest.mark.slow
def test_a_spawned_worker_takes_a_pickled_object_and_returns_its_state() -> None:
    objects = [built("recursive"), built("page")]
    with multiprocessing.get_context("spawn").Pool(1) as pool:  # as bytes: torch would share the tensors themselves
        found = pool.map(go_on_from, map(pickle.dumps, objects))
    assert same([pickle.loads(one) for one in found], [go_on(mg) for mg in objects])
