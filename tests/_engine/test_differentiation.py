"""Engines are interchangeable: the same path, the same errors, the same state; and each says when it cannot serve."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from stimulus_moo import (
    MiniBatch,
    MultiGradient,
    NonFiniteError,
    Recursive,
    StimulusWarning,
    Storm,
)
from stimulus_moo._engine.differentiation import choose
from tests.database import ANCHOR, BACKEND, ENGINES, ESTIMATORS, METHODS, Run
from tests.database import BATCHES as FOUR
from tests.harness import same, two_heads, two_losses
from tests.properties import check_engine, through_file

BATCHES = FOUR * 3


@pytest.fixture
def uncompiled(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Everything the compiled engine does, but for the C++."""
    monkeypatch.setattr(BACKEND, "aot_eager")
    yield
    torch._dynamo.reset()


def losses(model: nn.Module, batch: Any) -> tuple[Tensor, ...]:
    """Three objectives: one each for the heads, one for both."""
    left, right = two_losses(model, batch)
    return left, right, left * right


def walk(engine: str, estimator: Any, steps: int = 10, **options: Any) -> tuple[Tensor, MultiGradient]:
    model = two_heads()
    mg = MultiGradient(model, losses, estimator, engine=engine, **options)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    path = []
    for batch in BATCHES[:steps]:
        step = mg.backward(batch)
        optimizer.step()
        path.append(torch.cat([step.losses, step.weights, *(p.detach().flatten() for p in model.parameters())]))
    return torch.stack(path), mg


#: engines in pieces and whole; every estimator runs with the first three
WALKS = [
    ("batched", None),
    ("rowwise, in place", 4),
    ("batched, in place", 4),
    ("batched", 4),
    ("rowwise, in place", None),
]


@pytest.mark.parametrize(
    ("name", "engine", "micro_batch"),
    [
        pytest.param(name, *walk, marks=[pytest.mark.slow] if k >= 2 else [])
        for name in ESTIMATORS
        for k, walk in enumerate(WALKS)
        if k < 3 or name in ("recursive", "storm")
    ],
)
def test_all_engines_walk_the_same_path(name: str, engine: str, micro_batch: int | None) -> None:
    check_engine(ESTIMATORS[name], ENGINES[engine], micro_batch)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "engine"),
    [
        # every kind of update once: ``tests/test_twins.py`` compiles a method of each, too
        *((name, "compiled") for name in ("recursive", "storm", "mini-batch")),
        *((name, "compiled, in place") for name in ("page", "tracking")),
    ],
)
def test_compiled_functions_walk_the_same_path(name: str, engine: str) -> None:
    check_engine(ESTIMATORS[name], ENGINES[engine])


@pytest.mark.slow
def test_a_compiled_run_resumes_bit_for_bit() -> None:
    info = METHODS["moco+"]
    with ENGINES["compiled"].used() as engine:
        straight, resumed = (Run(info, engine=engine) for _ in range(2))
        straight.run(4)
        resumed.resume(through_file(straight.state()), straight).run(2)
        straight.run(2)
    assert np.array_equal(resumed.path, straight.path)
    assert same(resumed.state(), straight.state())


@pytest.mark.slow
def test_a_model_compiled_in_earnest_walks_the_same_path() -> None:
    expected, _ = walk("rowwise", Recursive(ANCHOR, 4), steps=8)
    found, mg = walk("compiled", Recursive(ANCHOR, 4), steps=8)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)
    assert mg.engine == "compiled"
    assert [known is not None for known in mg.store.compiler._known.values()] == [True]
    torch._dynamo.reset()


@pytest.mark.slow
@pytest.mark.usefixtures("uncompiled")
def test_the_compiled_function_is_really_used() -> None:
    _, mg = walk("compiled", Storm(0.3), steps=3)
    (known,) = [known for known in mg.store.compiler._known.values() if known is not None]
    calls = []
    mg.store.compiler._known = {
        key: known._replace(function=lambda *a: calls.append(1) or known.function(*a))
        for key in mg.store.compiler._known
    }
    mg.backward(BATCHES[3])
    assert calls == [1]


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if "compiled" in name else []) for name in ENGINES]
)
def test_a_gradient_that_is_not_finite_never_enters(name: str) -> None:
    with ENGINES[name].used() as engine:
        refuse_infinite_slopes(engine, in_place=ENGINES[name].in_place)


def refuse_infinite_slopes(engine: str, *, in_place: bool) -> None:
    model = two_heads()

    def root(model: nn.Module, batch: Any) -> tuple[Tensor, ...]:
        left, right = two_losses(model, batch)
        return left, (right - right.detach() + batch[0][0, 0].clamp(min=0)).sqrt(), left + right

    def at(value: float, k: int) -> Any:
        x, y = (column.clone() for column in BATCHES[k])
        x[0, 0] = value
        return x, y

    mg = MultiGradient(model, root, Recursive([at(1.0, 0)], period=100), engine=engine)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for k in range(4):
        mg.backward(at(1.0, k))
        optimizer.step()
    rows, state = mg.rows(), [p.detach().clone() for p in model.parameters()]
    with pytest.raises(NonFiniteError, match="gradient of objective 1 contains NaN or infinity at step 4"):
        mg.backward(at(-1.0, 5))  # sqrt(0): the loss is finite, its slope is not
    assert mg.t == 4
    assert same(mg.rows(), [] if in_place else rows)  # rows that are updated in place are dropped
    assert all(torch.equal(p, kept) for p, kept in zip(model.parameters(), state, strict=True))
    assert mg.engine == ("batched" if engine == "auto" else engine)


@pytest.mark.usefixtures("uncompiled")
@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (nn.Dropout(0.3), "draws random numbers or changes its buffers"),
        (nn.BatchNorm1d(5, dtype=torch.float64), "draws random numbers or changes its buffers"),
    ],
)
def test_models_with_a_mind_of_their_own_are_not_compiled(model: nn.Module, reason: str) -> None:
    whole = two_heads(model)
    mg = MultiGradient(whole, losses, MiniBatch(), engine="compiled")
    mg.backward(BATCHES[0])  # finds out what is reached
    with pytest.warns(StimulusWarning, match=f"engine 'compiled' does not work for this model: it {reason}"):
        mg.backward(BATCHES[1])
    assert mg.engine == "rowwise"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        mg.backward(BATCHES[2])


@pytest.mark.slow
@pytest.mark.usefixtures("uncompiled")
def test_layers_that_are_switched_on_later_are_noticed() -> None:
    model = two_heads(nn.Dropout(0.3)).eval()
    mg = MultiGradient(model, losses, MiniBatch(), engine="compiled")
    for batch in BATCHES[:3]:
        mg.backward(batch)
    assert mg.engine == "compiled"
    model.train()
    with pytest.warns(StimulusWarning, match="draws random numbers"):
        mg.backward(BATCHES[3])


@pytest.mark.usefixtures("uncompiled")
def test_large_models_are_not_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stimulus_moo._engine.compiled.COMPILED_ENTRIES", 10)
    mg = MultiGradient(two_heads(), losses, MiniBatch(), engine="compiled")
    mg.backward(BATCHES[0])
    with pytest.warns(StimulusWarning, match="it supports at most 10 entries of U"):
        mg.backward(BATCHES[1])


@pytest.mark.slow
@pytest.mark.usefixtures("uncompiled")
def test_any_number_of_models_can_be_compiled() -> None:
    with torch._dynamo.config.patch(recompile_limit=1):
        for _ in range(2):
            mg = MultiGradient(two_heads(), losses, MiniBatch(), engine="compiled")
            for batch in BATCHES[:2]:
                mg.backward(batch)
            assert mg.engine == "compiled"


@pytest.mark.slow
@pytest.mark.usefixtures("uncompiled")
def test_losses_that_take_parameters_from_outside_are_not_compiled() -> None:
    model = two_heads()
    captured = model.trunk.weight

    def sly(model: nn.Module, batch: Any) -> tuple[Tensor, ...]:
        left, right = two_losses(model, batch)
        return left + captured.square().sum(), right

    mg = MultiGradient(model, sly, MiniBatch(), engine="compiled")
    mg.backward(BATCHES[0])
    with pytest.warns(StimulusWarning, match=r"engine 'compiled' does not work for this model"):
        mg.backward(BATCHES[1])
    assert mg.engine == "rowwise"


@pytest.mark.slow
@pytest.mark.usefixtures("uncompiled")
def test_code_that_cannot_be_traced_is_not_compiled() -> None:
    def branching(model: nn.Module, batch: Any) -> tuple[Tensor, ...]:
        left, right = two_losses(model, batch)
        return (left, right) if left.item() > -1 else (right, left)

    mg = MultiGradient(two_heads(), branching, MiniBatch(), engine="compiled")
    mg.backward(BATCHES[0])
    with pytest.warns(StimulusWarning, match="it could not be compiled"):
        mg.backward(BATCHES[1])
    assert mg.engine == "rowwise"


@pytest.mark.slow
@pytest.mark.usefixtures("uncompiled")
def test_a_python_number_that_changes_is_not_compiled_again_and_again() -> None:
    def anneal(engine: str) -> tuple[Tensor, str]:
        model, now = two_heads(), {"beta": 0.0}
        mg = MultiGradient(
            model, lambda m, b: [loss * (1 + now["beta"]) for loss in losses(m, b)], MiniBatch(), engine=engine
        )
        for step, batch in enumerate(BATCHES[:12]):
            now["beta"] = step / 100
            mg.backward(batch)
        return torch.cat([p.grad.flatten() for p in model.parameters()]), mg.engine

    with pytest.warns(StimulusWarning, match="a Python value that its losses use has changed") as said:
        found, engine = anneal("compiled")
    assert (len(said), engine) == (1, "rowwise")
    assert torch.equal(found, anneal("rowwise")[0])


def test_a_missing_compiler_is_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*arguments: Any, **options: Any) -> Any:
        def fails(*arguments: Any) -> Any:
            raise RuntimeError("No working C++ compiler found\nmore")

        return fails

    monkeypatch.setattr(torch, "compile", missing)
    mg = MultiGradient(two_heads(), losses, MiniBatch(), engine="compiled")
    mg.backward(BATCHES[0])
    with pytest.warns(StimulusWarning, match=r"compiled \(RuntimeError: No working C\+\+ compiler found\). Continuing"):
        mg.backward(BATCHES[1])


def test_what_cannot_be_vectorised_goes_by_rows() -> None:
    model = nn.Sequential(nn.Embedding(5, 3, sparse=True), nn.Flatten(), nn.Linear(3, 3))
    batch = torch.tensor([[0], [3], [3]])

    def columns(model: nn.Module, batch: Tensor) -> Tensor:
        return model(batch).square().mean(0)

    expected = MultiGradient(model, columns, MiniBatch(), engine="rowwise").backward(batch)
    mg = MultiGradient(model, columns, MiniBatch(), engine="batched")
    with pytest.warns(StimulusWarning, match="engine 'batched' does not work for this model: its gradients cannot be"):
        step = mg.backward(batch)
    assert mg.engine == "rowwise"
    assert torch.equal(step.weights, expected.weights)


def test_a_choice_of_the_rule_that_fails_is_nobodys_business(caplog: pytest.LogCaptureFixture) -> None:
    model = nn.Sequential(nn.Embedding(5, 3, sparse=True), nn.Flatten(), nn.Linear(3, 3))
    mg = MultiGradient(model, lambda m, b: m(b).square().mean(0), MiniBatch())
    with caplog.at_level(logging.INFO, "stimulus_moo"):
        mg.backward(torch.tensor([[0], [3], [3]]))  # warnings are errors here
    assert mg.engine == "rowwise"
    assert "Continuing with engine 'rowwise'" in caplog.text


class TestChoice:
    def test_small_models_with_several_objectives_are_batched(self) -> None:
        model = nn.Sequential(nn.Linear(10, 10), nn.Tanh(), nn.Linear(10, 8))
        parameters = list(model.parameters())
        assert [choose(model, parameters, s) for s in (1, 2, 3, 8)] == ["rowwise", "rowwise", "batched", "batched"]

    def test_large_models_go_by_rows(self) -> None:
        model = nn.Linear(1000, 1000)
        assert [choose(model, list(model.parameters()), s) for s in (4, 5)] == ["batched", "rowwise"]

    @pytest.mark.parametrize("layer", [nn.Conv2d(1, 2, 3), nn.LSTM(2, 2), nn.Sequential(nn.Conv1d(1, 1, 1))])
    def test_layers_that_vectorise_badly_go_by_rows(self, layer: nn.Module) -> None:
        assert choose(layer, list(layer.parameters()), 8) == "rowwise"

    def test_the_choice_is_logged_kept_and_saved(self, caplog: pytest.LogCaptureFixture) -> None:
        mg = MultiGradient(two_heads(), losses, MiniBatch())
        assert mg.engine == mg.state_dict()["engine"] == "auto"
        with caplog.at_level(logging.DEBUG, "stimulus_moo"):
            mg.backward(BATCHES[0])
        assert mg.engine == mg.state_dict()["engine"] == "batched"
        assert "engine batched chosen for 3 objectives" in caplog.text
        fresh = MultiGradient(two_heads(), losses, MiniBatch())
        fresh.load_state_dict(mg.state_dict())
        assert fresh.engine == "batched"


@pytest.mark.parametrize("asked", ["auto", "rowwise", "batched"])
@pytest.mark.parametrize("saved", ["rowwise", "batched"])
def test_a_loaded_state_keeps_the_engine_that_was_asked_for(saved: str, asked: str) -> None:
    """A choice that was left to the rule goes on as the saved run did."""
    first, second = (Run(METHODS["stimulus"], engine=name) for name in (saved, asked))
    first.run(3)
    second.resume(first.state(), first)
    assert second.multigradient.engine == (saved if asked == "auto" else asked)
