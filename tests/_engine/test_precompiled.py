"""Models compiled by torch.compile: equal to the uncompiled model in every engine, with its names and its states."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from stimulus_moo import (
    Adaptive,
    Filtered,
    Full,
    MiniBatch,
    MultiGradient,
    Page,
    Recursive,
    StimulusWarning,
    Storm,
    Tracking,
    fit,
)
from stimulus_moo._engine.precompiled import is_compiled, original, plain_name
from tests.database import BACKEND

X = torch.randn(24, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
NAMES = ["trunk.layer.weight", "trunk.layer.bias", "head.weight", "head.bias"]


class Trunk(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 5)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.layer(x)).square()


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.trunk, self.head = Trunk(), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.trunk(x))


def losses(model: nn.Module, x: Tensor) -> Tensor:
    return model(x).square().mean(0)


def whole(model: Model, backend: str) -> Any:
    return torch.compile(model, backend=backend)


def used_before(model: Model, backend: str) -> Any:
    """Compile the model, for one backward pass, before the library sees it."""
    compiled = torch.compile(model, backend=backend)
    compiled(X[:4].to(model.head.weight.dtype)).sum().backward()
    return compiled


def part(model: Model, backend: str) -> Any:
    model.trunk = torch.compile(model.trunk, backend=backend)  # type: ignore[assignment]
    return model


def in_place(model: Model, backend: str) -> Any:
    model.compile(backend=backend)
    return model


WAYS = (whole, used_before, part, in_place)


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(BACKEND, "aot_eager")
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def walk(model: nn.Module, engine: str, steps: int = 6, function: Any = losses) -> tuple[Tensor, MultiGradient]:
    x = X.to(next(model.parameters()).dtype)
    mg = MultiGradient(model, function, Recursive(x.split(4), period=3), engine=engine)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in x.split(4)[:steps]:
        mg.backward(batch)
        optimizer.step()
    return torch.cat([p.detach().flatten() for p in model.parameters()]), mg


def check(way: Callable[..., Any], engine: str, dtype: torch.dtype, backend: str) -> None:
    expected, _ = walk(Model().to(dtype), "rowwise")
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        found, mg = walk(way(Model().to(dtype), backend), engine)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-10 if dtype == torch.float64 else 1e-6)
    assert mg.engine == "rowwise"
    given = [str(one.message) for one in said if one.category is StimulusWarning]
    assert len(given) == (engine in ("batched", "compiled"))
    assert all("a part of it was compiled by torch.compile" in message for message in given)
    assert mg.objective.names == list(mg.rows()[0]) == NAMES


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["auto", "rowwise", "batched", "compiled"])
@pytest.mark.parametrize("way", WAYS)
def test_a_compiled_model_walks_the_same_path(way: Callable[..., Any], engine: str) -> None:
    check(way, engine, torch.float64 if engine != "batched" else torch.float32, "aot_eager")


@pytest.mark.slow
def test_a_model_compiled_by_inductor_walks_the_same_path() -> None:
    check(whole, "rowwise", torch.float32, "inductor")


@pytest.mark.slow
def test_compiled_losses_walk_the_same_path() -> None:
    expected, _ = walk(Model().double(), "rowwise")
    found, mg = walk(Model().double(), "auto", function=torch.compile(losses, backend="aot_eager"))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)
    assert mg.engine == "rowwise"


@pytest.mark.slow
@pytest.mark.parametrize("compiled_first", [True, False])
def test_a_state_fits_the_compiled_and_the_uncompiled_model(compiled_first: bool) -> None:
    def build(compiled: bool) -> nn.Module:
        return whole(Model().double(), "aot_eager") if compiled else Model().double()

    _, first = walk(build(compiled_first), "rowwise", steps=2)
    second = MultiGradient(build(not compiled_first), losses, Recursive([X], period=3), engine="rowwise")
    original(second.objective.model).load_state_dict(original(first.objective.model).state_dict())
    second.load_state_dict(first.state_dict())
    a, b = first.backward(X[8:12]), second.backward(X[8:12])
    torch.testing.assert_close(a.weights, b.weights, rtol=0, atol=1e-10)
    assert list(first.state_dict()["layout"]) == list(second.state_dict()["layout"]) == NAMES


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*torch.jit.script_method. is deprecated")
def test_fit_resumes_a_run_whether_the_model_is_compiled_or_not(tmp_path: Path) -> None:
    def run(model: nn.Module, steps: int, *, resume: bool = True, folder: Path | None = tmp_path) -> Any:
        options: dict[str, Any] = {"lr": 0.05, "batch_size": 4, "anchor_batch": 4, "engine": "rowwise", "guard": False}
        return fit(model, losses, X, steps=steps, checkpoint=folder, resume=resume and folder is not None, **options)

    run(Model().double(), 3, resume=False)
    run(whole(Model().double(), "aot_eager"), 5)
    found = run(Model().double(), 6)
    expected = run(Model().double(), 6, folder=None)
    for one, other in zip(found.model.parameters(), expected.model.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-10)


def test_names_are_those_of_the_original() -> None:
    model = Model()
    assert plain_name("_orig_mod.trunk._orig_mod.layer.weight") == "trunk.layer.weight"
    assert original(model) is model
    assert not is_compiled(model, losses)
    compiled = whole(model, "aot_eager")
    assert original(compiled) is model
    assert is_compiled(compiled, losses)
    assert is_compiled(in_place(Model(), "aot_eager"), losses)
    assert MultiGradient(compiled, losses, Recursive([X], period=3)).objective.names == NAMES


ESTIMATORS: dict[str, Callable[[], Any]] = {
    "full": lambda: Full(X.split(7)),
    "mini-batch": MiniBatch,
    "recursive": lambda: Recursive(X.split(7), period=3),
    "page": lambda: Page(X.split(7), 0.3, seed=1),
    "storm": lambda: Storm(0.2),
    "tracking": lambda: Tracking(0.2),
    "filtered": Filtered,
    "adaptive": lambda: Adaptive(X.split(7)),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ESTIMATORS)
def test_every_estimator_takes_a_compiled_model_with_dynamic_shapes(name: str) -> None:
    def path(dynamic: bool | None) -> Tensor:
        model = Model().double()
        used = model if dynamic is None else torch.compile(model, backend="aot_eager", dynamic=dynamic)
        mg = MultiGradient(used, losses, ESTIMATORS[name](), reweigh=3 if name == "adaptive" else 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for batch in X.split([4, 6, 3, 6, 5]):
            mg.backward(batch)
            optimizer.step()
        return torch.cat([p.detach().flatten() for p in model.parameters()])

    expected = path(None)
    torch.testing.assert_close(path(True), expected, rtol=0, atol=1e-10)
