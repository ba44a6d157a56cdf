"""Losses with names: a dict from ``losses`` gives the same path, and its names appear wherever numbers did."""

from __future__ import annotations

from collections import deque
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from stimulus_moo import (
    InvalidLosses,
    MiniBatch,
    MultiGradient,
    NonFiniteError,
    Recursive,
    StateMismatch,
    TensorBoardLogger,
    fit,
    measure,
)
from tests.database import ENGINES

X = torch.randn(24, 4, generator=torch.Generator().manual_seed(0))
NAMES = ("accuracy", "fairness", "size")


def linear() -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(4, 3)


def numbered(model: nn.Module, x: Tensor) -> Tensor:
    return model(x).square().mean(0)


def named(model: nn.Module, x: Tensor) -> dict[str, Tensor]:
    return dict(zip(NAMES, numbered(model, x), strict=True))


def broken(model: nn.Module, x: Tensor) -> dict[str, Tensor]:
    found = named(model, x)
    found["fairness"] = found["fairness"] * (torch.nan if x[0, 0] == X[8, 0] else 1.0)
    return found


def rooted(model: nn.Module, x: Tensor) -> dict[str, Tensor]:
    found = named(model, x)
    return found | {"fairness": (0.0 * found["fairness"]).sqrt()}  # an infinite gradient times 0


def walk(losses: Any, engine: str) -> tuple[Tensor, MultiGradient, Any]:
    model = linear()
    mg, optimizer = (
        MultiGradient(model, losses, Recursive([X], 3), engine=engine),
        torch.optim.SGD(model.parameters(), 0.1),
    )
    for batch in X.split(4):
        step = mg.backward(batch)
        optimizer.step()
    return torch.cat([p.detach().flatten() for p in model.parameters()]), mg, step


@pytest.mark.parametrize(
    "engine", ["rowwise", "batched", pytest.param("compiled", marks=pytest.mark.slow), "rowwise, in place"]
)
def test_a_dict_takes_the_path_of_a_tensor(engine: str) -> None:
    with ENGINES[engine].used() as option:
        found, mg, step = walk(named, option)
        expected, _, plain = walk(numbered, option)
        assert mg.engine == option
    assert torch.equal(found, expected)
    assert step.names == NAMES
    assert step.named_losses == dict(zip(NAMES, plain.losses.tolist(), strict=True))
    assert step.named_weights == dict(zip(NAMES, plain.weights.tolist(), strict=True))
    assert plain.names == ()
    assert list(plain.named_losses) == ["0", "1", "2"]


def test_the_order_of_a_later_dict_does_not_matter() -> None:
    calls: list[int] = []

    def losses(model: nn.Module, x: Tensor) -> dict[str, Tensor]:
        calls.append(1)
        found = named(model, x)
        return found if len(calls) == 1 else dict(reversed(found.items()))

    assert torch.equal(walk(losses, "rowwise")[0], walk(named, "rowwise")[0])


@pytest.mark.parametrize(
    ("losses", "error", "message"),
    [
        (broken, NonFiniteError, r"^loss 'fairness' is nan at step 2; nothing was changed"),
        (rooted, NonFiniteError, r"^the gradient of loss 'fairness' contains NaN or infinity at step 0"),
        (lambda m, x: named(m, x) | {"size": x.mean()}, InvalidLosses, r"^loss 'size' depends on no trainable"),
        (lambda m, x: named(m, x) | {"size": m(x)}, InvalidLosses, r"^loss 'size' must be a real 0-d tensor"),
        (lambda m, x: {0: m(x).mean()}, InvalidLosses, r"names of losses must be strings, found \[0\]"),
    ],
)
def test_errors_name_the_loss(losses: Any, error: Any, message: str) -> None:
    mg = MultiGradient(linear(), losses, MiniBatch())
    with pytest.raises(error, match=message) as told:
        deque(map(mg.backward, X.split(4)))
    if error is NonFiniteError:
        assert (told.value.objective, told.value.name) == (1, "fairness")
    with pytest.raises(error, match=message.split(" at step")[0]):
        measure(linear(), losses, X.split(4))


def test_other_names_than_before_are_refused() -> None:
    mg = MultiGradient(linear(), lambda m, x: named(m, x) if len(x) == 4 else {"other": m(x).mean()}, MiniBatch())
    mg.backward(X[:4])
    with pytest.raises(InvalidLosses, match=r"a dict with accuracy, fairness, size before and a dict with other now"):
        mg.backward(X[:5])


def test_a_state_keeps_the_order_of_the_names() -> None:
    def reverse(model: nn.Module, x: Tensor) -> dict[str, Tensor]:
        return dict(reversed(named(model, x).items()))

    model = linear()
    first = MultiGradient(model, named, Recursive([X], 3))
    first.backward(X[:4])
    second = MultiGradient(model, reverse, Recursive([X], 3))
    second.load_state_dict(first.state_dict())
    a, b = first.backward(X[4:8]), second.backward(X[4:8])
    assert b.names == NAMES
    assert torch.equal(a.weights, b.weights)
    third = MultiGradient(model, lambda m, x: {"a": m(x).mean(), "b": m(x).sum(), "c": m(x).std()}, MiniBatch())
    third.backward(X)
    with pytest.raises(StateMismatch, match=r"names is \['accuracy', 'fairness', 'size'\], the losses of this object"):
        third.load_state_dict({**third.state_dict(), "names": list(NAMES)})


def test_fit_records_names(tmp_path: Path) -> None:
    pytest.importorskip("pandas")
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    told: list[tuple[str, ...]] = []
    board = TensorBoardLogger(tmp_path / "board")
    options: dict[str, Any] = {"method": "smgd", "lr": 0.1, "batch_size": 4, "checkpoint": tmp_path / "c"}
    result = fit(linear(), named, X, steps=3, callbacks=[board, lambda p: told.append(p.names)], **options)
    board.close()
    assert told == [NAMES] * 3
    assert list(result.named_losses) == list(NAMES)
    assert {"loss_fairness", "weight_size", "full_loss_accuracy"} <= set(result.frame().columns)
    tags = events.EventAccumulator(str(tmp_path / "board")).Reload().Tags()["scalars"]
    assert {"loss/fairness", "weight/accuracy"} <= set(tags)
    assert fit(linear(), named, X, steps=3, resume=True, **options).history.names == NAMES


def test_the_check_names_the_loss() -> None:
    def summed(model: nn.Module, x: Tensor) -> dict[str, Tensor]:
        return {"first": model(x)[:, 0].square().mean(), "second": model(x)[:, 1].square().sum()}

    (message,) = MultiGradient(linear(), summed, Recursive([X], 3)).check(X)
    assert message.startswith("loss 'second' is ")
