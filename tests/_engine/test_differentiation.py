"""Engines are interchangeable: the same path, the same errors, the same state; and each says when it cannot serve."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from typing import Any

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
    Tracking,
)
from stimulus_moo._engine.differentiation import choose
from tests.harness import cut, data, same, two_heads, two_losses

COLUMNS = data(24)
BATCHES = cut(COLUMNS, 6) * 3


@pytest.fixture
def uncompiled(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Everything the compiled engine does, but for the C++."""
    monkeypatch.setattr("stimulus_moo._engine.compiled.BACKEND", "aot_eager")
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


ESTIMATORS = {
    "recursive": lambda: Recursive(cut(COLUMNS, 10), 4),
    "storm": lambda: Storm(0.3),
    "tracking": lambda: Tracking(0.3),
    "mini-batch": MiniBatch,
}


@pytest.mark.parametrize("name", ESTIMATORS)
@pytest.mark.parametrize("engine", ["batched", "compiled"])
@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize("micro_batch", [None, 4])
@pytest.mark.usefixtures("uncompiled")
def test_all_engines_walk_the_same_path(
    engine: str, name: str, large: bool, micro_batch: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected, by_rows = walk("rowwise", ESTIMATORS[name](), micro_batch=micro_batch)
    if large:
        monkeypatch.setattr("stimulus_moo._engine.store.STAGED_ENTRIES", 0)
    found, mg = walk(engine, ESTIMATORS[name](), micro_batch=micro_batch)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)
    assert mg.engine == engine
    assert (mg.samples, mg.gradients) == (by_rows.samples, by_rows.gradients)
    assert [row.keys() for row in mg.rows()] == [row.keys() for row in by_rows.rows()]


@pytest.mark.slow
def test_a_model_compiled_in_earnest_walks_the_same_path() -> None:
    expected, _ = walk("rowwise", Recursive(cut(COLUMNS, 10), 4), steps=8)
    found, mg = walk("compiled", Recursive(cut(COLUMNS, 10), 4), steps=8)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)
    assert mg.engine == "compiled"
    assert [known is not None for known in mg.store.compiler._known.values()] == [True]
    torch._dynamo.reset()


@pytest.mark.usefixtures("uncompiled")
def test_the_compiled_function_is_really_used() -> None:
    _, mg = walk("compiled", Storm(0.3), steps=3)
    (known,) = [known for known in mg.store.compiler._known.values() if known is not None]
    calls = []
    mg.store.compiler._known = {
        key: type(known)(lambda *a: calls.append(1) or known.function(*a), known.reach)
        for key in mg.store.compiler._known
    }
    mg.backward(BATCHES[3])
    assert calls == [1]


@pytest.mark.parametrize("engine", ["rowwise", "batched", "compiled"])
@pytest.mark.parametrize("large", [False, True])
@pytest.mark.usefixtures("uncompiled")
def test_a_gradient_that_is_not_finite_never_enters(engine: str, large: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if large:
        monkeypatch.setattr("stimulus_moo._engine.store.STAGED_ENTRIES", 0)
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
    if large:
        assert mg.rows() == []  # they were being updated in place
    else:
        assert same(mg.rows(), rows)
    assert all(torch.equal(p, kept) for p, kept in zip(model.parameters(), state, strict=True))
    assert mg.engine == engine


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


@pytest.mark.usefixtures("uncompiled")
def test_any_number_of_models_can_be_compiled() -> None:
    for _ in range(torch._dynamo.config.recompile_limit + 2):
        mg = MultiGradient(two_heads(), losses, MiniBatch(), engine="compiled")
        for batch in BATCHES[:2]:
            mg.backward(batch)
        assert mg.engine == "compiled"


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


def test_a_missing_compiler_is_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*arguments: Any, **options: Any) -> Any:
        def fails(*arguments: Any) -> Any:
            raise RuntimeError("No working C++ compiler found\nmore")

        return fails

    monkeypatch.setattr(torch, "compile", missing)
    mg = MultiGradient(two_heads(), losses, MiniBatch(), engine="compiled")
    mg.backward(BATCHES[0])
    with pytest.warns(
        StimulusWarning,
        match=r"compiled \(RuntimeError: No working C\+\+ compiler found\). Continuing with engine 'rowwise'",
    ):
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
