"""The contract of the loop's door: what a step returns, writes, counts and refuses."""

from __future__ import annotations

from collections import UserDict, namedtuple
from collections.abc import Iterator
from dataclasses import FrozenInstanceError, dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from stimulus_moo import (
    Fixed,
    Full,
    InvalidBatch,
    InvalidLosses,
    InvalidOption,
    InvalidWeights,
    MiniBatch,
    MinNorm,
    ModelChanged,
    MultiGradient,
    Recursive,
    StimulusError,
)
from tests.database import ANCHOR, BATCHES, COLUMNS, ESTIMATORS
from tests.harness import (
    cut,
    data,
    direction,
    jacobian,
    same,
    stored_rows,
    train,
    two_heads,
    two_losses,
    vector,
)


def recursive(period: int = 4) -> Recursive:
    return Recursive(ANCHOR, period)


# What a step returns and writes


def test_a_step_is_a_frozen_record_of_detached_values() -> None:
    step = MultiGradient(two_heads(), two_losses, MiniBatch()).backward(BATCHES[0])
    assert (step.losses.shape, step.weights.shape, step.sq_norm.shape) == ((2,), (2,), ())
    assert not any(value.requires_grad for value in (step.losses, step.weights, step.sq_norm))
    assert step.anchored is False
    with pytest.raises(FrozenInstanceError):
        step.anchored = True  # type: ignore[misc]


def test_losses_weights_and_norm_are_those_of_the_batch() -> None:
    model = two_heads()
    rows = jacobian(model, two_losses, BATCHES[0])
    losses = torch.stack(two_losses(model, BATCHES[0])).detach()
    step = MultiGradient(model, two_losses, MiniBatch()).backward(BATCHES[0])
    torch.testing.assert_close(step.losses, losses, rtol=0, atol=0)
    weights = MinNorm()(rows @ rows.T)
    torch.testing.assert_close(step.weights, weights, rtol=0, atol=1e-13)
    torch.testing.assert_close(direction(model), weights @ rows, rtol=0, atol=1e-13)
    torch.testing.assert_close(step.sq_norm, (weights @ rows).square().sum(), rtol=1e-12, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("scale", [1e-25, 1e24])
@pytest.mark.parametrize("width", [5, 20_000])  # staged, and in place
def test_squared_norms_beyond_float32_are_exact(width: int, scale: float, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model, x = nn.Linear(width, 4, dtype=dtype), torch.randn(6, width, dtype=dtype)
    mg = MultiGradient(model, lambda m, x: m(x).square().mean(0) * scale, Recursive([x], 4), Fixed([0.25] * 4))
    mg.watch()
    for _ in range(2):  # an anchor and an inner step
        step = mg.backward(x)
        assert (step.sq_norm.dtype, step.sq_norm.device.type, step.sq_norm.dim()) == (torch.float64, "cpu", 0)
        expected = direction(model).double().square().sum()
        assert expected > 1e40 or 0 < expected < 1e-40
        torch.testing.assert_close(step.sq_norm, expected, rtol=1e-12, atol=0)
        assert mg.sq_norm == step.sq_norm.item()
    assert mg.observation is not None
    assert mg.observation.sq_norm == pytest.approx(float(step.sq_norm), rel=1e-6)


def test_on_an_anchor_step_losses_are_means_over_the_anchor() -> None:
    model = two_heads()
    step = MultiGradient(model, two_losses, recursive()).backward(BATCHES[0])
    assert step.anchored is True
    expected = torch.stack(two_losses(model, COLUMNS)).detach()
    torch.testing.assert_close(step.losses, expected, rtol=0, atol=1e-14)


def test_gradients_are_overwritten_and_not_accumulated() -> None:
    model = two_heads()
    mg = MultiGradient(model, two_losses, MiniBatch())
    mg.backward(BATCHES[0])
    first = direction(model)
    mg.backward(BATCHES[1])
    mg.backward(BATCHES[0])
    assert torch.equal(direction(model), first)


@pytest.mark.parametrize("form", [tuple, list, torch.stack])
def test_losses_may_come_as_tuple_list_or_tensor(form: Any) -> None:
    model = two_heads()
    step = MultiGradient(model, lambda m, b: form(two_losses(m, b)), recursive()).backward()
    other = MultiGradient(model, two_losses, recursive()).backward()
    torch.testing.assert_close(step.losses, other.losses)
    torch.testing.assert_close(step.weights, other.weights)


def test_one_objective_is_its_gradient() -> None:
    model = two_heads()
    mg = MultiGradient(model, lambda m, b: two_losses(m, b)[:1], recursive())
    step = mg.backward(BATCHES[0])
    assert step.weights.tolist() == [1.0]
    torch.testing.assert_close(direction(model), jacobian(model, two_losses, COLUMNS)[0], rtol=0, atol=1e-14)
    assert model.right.weight.grad is None


def test_a_loss_may_be_a_parameter_itself() -> None:
    class Pair(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Parameter(torch.tensor(2.0)), nn.Parameter(torch.tensor(3.0))

    model = Pair()
    mg = MultiGradient(model, lambda m, x: (m.a, m.a * m.b), MiniBatch(), Fixed([1.0, 10.0]))
    assert mg.backward(torch.zeros(1)).losses.tolist() == [2.0, 6.0]
    assert model.a.grad is not None
    assert model.b.grad is not None
    assert (model.a.grad.item(), model.b.grad.item()) == (1 + 30.0, 20.0)


def test_a_step_does_not_share_memory_with_what_comes_next() -> None:
    from stimulus_moo import Smoothed

    runs = []
    for meddle in (False, True):
        mg = MultiGradient(two_heads(), two_losses, MiniBatch(), Smoothed(MinNorm(), 0.9))
        for batch in BATCHES:
            step = mg.backward(batch)
            if meddle:
                for value in (step.weights, step.losses, step.sq_norm):
                    value.fill_(7.0)
        runs.append(mg.state_dict())
    assert same(runs[0], runs[1])


def test_gradient_mode_is_not_needed() -> None:
    model = two_heads()
    mg = MultiGradient(model, two_losses, recursive())
    with torch.no_grad():
        first = train(mg, BATCHES)
    other = MultiGradient(two_heads(), two_losses, recursive())
    assert torch.equal(first, train(other, BATCHES))
    assert all(not p.grad.requires_grad for p in model.parameters() if p.grad is not None)


# Counters


def test_counts_of_the_paper() -> None:
    columns = data(128)
    mg = MultiGradient(two_heads(), two_losses, Recursive(cut(columns, 64), 10))
    train(mg, (cut(columns, 8) * 7)[:100])
    assert (mg.samples, mg.gradients) == (10 * 128 + 90 * 8, 10 * 128 + 90 * 16)


# Batches, anchors, pieces


@dataclass
class Record:
    x: Tensor
    y: Tensor


Pair = namedtuple("Pair", ["x", "y"])


@pytest.mark.parametrize(
    ("wrap", "unwrap"),
    [
        (lambda x, y: {"x": x, "y": y}, lambda b: (b["x"], b["y"])),
        (lambda x, y: UserDict(x=x, y=y), lambda b: (b["x"], b["y"])),
        (Record, lambda b: (b.x, b.y)),
        (Pair, lambda b: (b.x, b.y)),
        (lambda x, y: [{"deep": (x,)}, y], lambda b: (b[0]["deep"][0], b[1])),
        (lambda x, y: (x, ["name"] * len(x), y), lambda b: (b[0], b[2])),
        (lambda x, y: (x, y.numpy()), lambda b: (b[0], torch.from_numpy(b[1]))),
    ],
    ids=["dict", "UserDict", "dataclass", "namedtuple", "nested", "with names", "with numpy"],
)
@pytest.mark.parametrize("micro_batch", [None, 4])
def test_batches_of_any_nest_train_alike(wrap: Any, unwrap: Any, micro_batch: int | None) -> None:
    def losses(model: nn.Module, batch: Any) -> tuple[Tensor, Tensor]:
        return two_losses(model, unwrap(batch))

    plain = MultiGradient(two_heads(), two_losses, recursive(), micro_batch=micro_batch)
    anchor = [wrap(*batch) for batch in cut(COLUMNS, 10)]
    mg = MultiGradient(two_heads(), losses, Recursive(anchor, 4), micro_batch=micro_batch)
    assert torch.equal(train(mg, [wrap(*batch) for batch in BATCHES]), train(plain, BATCHES))
    assert (mg.samples, mg.gradients) == (plain.samples, plain.gradients)


@pytest.mark.parametrize("sizes", [[24], [10, 10, 4], [1, 5, 18], [7, 7, 7, 3]])
@pytest.mark.parametrize("micro_batch", [None, 4])
def test_ragged_anchors_are_weighted_by_size(sizes: list[int], micro_batch: int | None) -> None:
    model = two_heads()
    anchor = list(zip(*(column.split(sizes) for column in COLUMNS), strict=True))
    mg = MultiGradient(model, two_losses, Recursive(anchor, 4), micro_batch=micro_batch)
    step = mg.backward()
    torch.testing.assert_close(stored_rows(mg), jacobian(model, two_losses, COLUMNS), rtol=0, atol=1e-12)
    torch.testing.assert_close(step.losses, torch.stack(two_losses(model, COLUMNS)).detach(), rtol=0, atol=1e-13)


def test_a_loader_is_an_anchor() -> None:
    loader = DataLoader(TensorDataset(*COLUMNS), batch_size=10, shuffle=True)
    model = two_heads()
    mg = MultiGradient(model, two_losses, Recursive(loader, 2))
    train(mg, BATCHES[:2])
    mg.backward()
    torch.testing.assert_close(stored_rows(mg), jacobian(model, two_losses, COLUMNS), rtol=0, atol=1e-12)


def test_no_more_than_micro_batch_samples_are_evaluated_at_once() -> None:
    sizes = []

    def losses(model: nn.Module, batch: Any) -> tuple[Tensor, Tensor]:
        sizes.append(len(batch[0]))
        return two_losses(model, batch)

    mg = MultiGradient(two_heads(), losses, recursive(), micro_batch=4)
    mg.backward()
    assert sizes == [4, 4, 2, 4, 4, 2, 4]
    sizes.clear()
    mg.backward(BATCHES[0])
    assert sizes == [4, 2, 4, 2]


def test_a_batch_size_function_decides_weights_and_counts() -> None:
    model = two_heads()
    anchor = [COLUMNS, (COLUMNS[0][:6], COLUMNS[1][:6])]
    mg = MultiGradient(
        model, two_losses, Recursive(anchor, 4), batch_size=lambda batch: 3 if len(batch[0]) == 24 else 1
    )
    mg.backward()
    expected = 0.75 * jacobian(model, two_losses, anchor[0]) + 0.25 * jacobian(model, two_losses, anchor[1])
    torch.testing.assert_close(stored_rows(mg), expected, rtol=0, atol=1e-13)
    assert (mg.samples, mg.gradients) == (4, 4)


class Spent:
    """Iterable once only, without looking it."""

    def __init__(self) -> None:
        self.iterator: Iterator[Any] = iter(BATCHES)

    def __iter__(self) -> Iterator[Any]:
        return self.iterator


def test_empty_and_spent_anchors_are_refused_when_they_are_met() -> None:
    with pytest.raises(InvalidBatch, match=r"anchor gave no batches.*DataLoader or a list"):
        MultiGradient(two_heads(), two_losses, Full([])).backward()
    mg = MultiGradient(two_heads(), two_losses, Full(Spent()))
    mg.backward()
    with pytest.raises(InvalidBatch, match="anchor gave no batches"):
        mg.backward()
    assert (mg.t, mg.samples) == (1, 24)


def test_batches_that_cannot_be_used() -> None:
    mg = MultiGradient(two_heads(), two_losses, MiniBatch(), micro_batch=2)
    with pytest.raises(InvalidBatch, match=r"needs a batch at every step: call backward\(batch\), found None"):
        mg.backward()
    with pytest.raises(InvalidBatch, match="at least one sample, found size 0"):
        mg.backward((torch.zeros(0, 4), torch.zeros(0, 2)))
    with pytest.raises(InvalidBatch, match="micro_batch cannot split"):
        mg.backward((torch.zeros(4, 4), torch.zeros(3, 2)))
    assert (mg.t, mg.samples) == (0, 0)


# shared=


def test_the_trunk_alone_decides_the_weights_where_shared_says_so() -> None:
    model = two_heads()
    rows = jacobian(model, two_losses, COLUMNS)
    trunk = rows[:, : 4 * 5 + 5]
    expected = MinNorm()(trunk @ trunk.T)
    assert not torch.allclose(expected, MinNorm()(rows @ rows.T), rtol=0, atol=1e-3)
    mg = MultiGradient(model, two_losses, recursive(), shared=model.trunk.parameters())
    step = mg.backward()
    torch.testing.assert_close(step.weights, expected, rtol=0, atol=1e-13)
    torch.testing.assert_close(direction(model), expected @ rows, rtol=0, atol=1e-13)
    torch.testing.assert_close(step.sq_norm, (expected @ rows).square().sum(), rtol=1e-12, atol=0)


def test_head_rows_are_stored_once() -> None:
    mg = MultiGradient(two_heads(), two_losses, recursive())
    mg.backward()
    rows = mg.store.rows
    assert rows is not None
    assert sum(block.matrix.numel() for block in rows.blocks) == 2 * 25 + 6 + 6
    assert [sorted(row) for row in mg.rows()] == [
        ["left.bias", "left.weight", "trunk.bias", "trunk.weight"],
        ["right.bias", "right.weight", "trunk.bias", "trunk.weight"],
    ]


# Weightings


@pytest.mark.parametrize("garbage", [None, 0.5, torch.ones(3), torch.tensor([0.5, torch.nan]), [0.5, 0.5]])
def test_a_weighting_that_returns_garbage(garbage: Any) -> None:
    mg = MultiGradient(two_heads(), two_losses, MiniBatch(), lambda gramian: garbage)
    with pytest.raises(InvalidWeights, match="the weighting must return"):
        mg.backward(BATCHES[0])


def test_any_function_of_the_gramian_is_a_weighting() -> None:
    seen = []

    def weighting(gramian: Tensor) -> Tensor:
        seen.append(gramian.clone())
        return torch.tensor([2.0, -1.0])

    model = two_heads()
    mg = MultiGradient(model, two_losses, MiniBatch(), weighting)
    mg.backward(BATCHES[0])
    rows = jacobian(model, two_losses, BATCHES[0])
    torch.testing.assert_close(seen[0], rows @ rows.T, rtol=0, atol=1e-13)
    torch.testing.assert_close(direction(model), 2 * rows[0] - rows[1], rtol=0, atol=1e-13)


# Misuse


BROKEN_LOSSES = {
    "scalar": lambda a, b: a,
    "shape": lambda a, b: (a, b.expand(2)),
    "no grad": lambda a, b: (a.detach(), b.detach()),
    "None": lambda a, b: None,
    "numpy": lambda a, b: np.array([1.0, 2.0]),
    "empty": lambda a, b: (),
    "another S": lambda a, b: (a, b, a),
}


@pytest.mark.parametrize("kind", BROKEN_LOSSES)
@pytest.mark.parametrize("steps", [0, 2, 4])
def test_losses_that_return_something_else(kind: str, steps: int) -> None:
    broken = False

    def losses(model: nn.Module, batch: Any) -> Any:
        pair = two_losses(model, batch)
        return BROKEN_LOSSES[kind](*pair) if broken else pair

    mg = MultiGradient(two_heads(), losses, recursive())
    if steps:
        train(mg, BATCHES[:steps])
    before, broken = mg.state_dict(), True
    if kind == "another S" and not steps:  # S is whatever comes first
        assert len(mg.backward().losses) == 3
        return
    with pytest.raises(InvalidLosses):
        mg.backward(BATCHES[2])
    assert same(mg.state_dict(), before)


def test_another_number_of_losses_within_the_first_call() -> None:
    calls = []

    def losses(model: nn.Module, batch: Any) -> Any:
        calls.append(1)
        pair = two_losses(model, batch)
        return pair if len(calls) == 1 else (*pair, pair[0])

    mg = MultiGradient(two_heads(), losses, recursive())
    with pytest.raises(InvalidLosses, match="losses returned 2 losses before and 3 now"):
        mg.backward()
    assert mg.objective.count is None


def change_dtype(model: nn.Module) -> None:
    model.float()


def freeze(model: nn.Module) -> None:
    model.left.bias.requires_grad_(False)


def add(model: nn.Module) -> None:
    model.extra = nn.Parameter(torch.zeros(1, dtype=torch.float64))


def replace(model: nn.Module) -> None:
    model.left = nn.Linear(5, 1, dtype=torch.float64)


CHANGES = [change_dtype, freeze, add, replace]


def cast_losses(model: nn.Module, batch: Any) -> tuple[Tensor, Tensor]:
    kind = model.trunk.weight.dtype
    return two_losses(model, tuple(column.to(kind) for column in batch))


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("name", [name for name, info in ESTIMATORS.items() if info.remembers])
def test_a_changed_model_is_refused_by_estimators_that_remember(name: str, change: Any) -> None:
    model = two_heads()
    mg = MultiGradient(model, cast_losses, ESTIMATORS[name].build())
    train(mg, BATCHES[:3])
    counters = mg.samples, mg.gradients
    rows = mg.rows()
    change(model)
    for _ in range(2):
        with pytest.raises(ModelChanged, match=r"added, removed, frozen, cast or moved.*call reset\(\)"):
            mg.backward(BATCHES[2])
    assert (mg.samples, mg.gradients) == counters
    assert same(mg.rows(), rows)
    mg.reset()
    assert (mg.t, mg.samples, mg.gradients) == (0, *counters)
    fresh = MultiGradient(model, cast_losses, ESTIMATORS[name].build())
    fresh.estimator.load_state_dict(mg.estimator.state_dict())  # what it has learnt and drawn so far
    mg.backward(BATCHES[2])
    found = direction(model)
    fresh.backward(BATCHES[2])
    assert torch.equal(found, direction(model))
    assert mg.objective.unchanged()


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("name", [name for name, info in ESTIMATORS.items() if not info.remembers])
def test_a_changed_model_is_followed_by_estimators_that_do_not(name: str, change: Any) -> None:
    model = two_heads()
    mg = MultiGradient(model, cast_losses, ESTIMATORS[name].build())
    train(mg, BATCHES[:2])
    change(model)
    fresh = MultiGradient(model, cast_losses, ESTIMATORS[name].build())
    fresh.estimator.load_state_dict(mg.estimator.state_dict())  # what it has learnt and drawn so far
    mg.backward(BATCHES[2])
    assert mg.t == 3
    found = direction(model)
    fresh.backward(BATCHES[2])
    assert torch.equal(found, direction(model))


def test_freezing_all_that_decides_is_refused_again_and_again() -> None:
    model = two_heads()
    mg = MultiGradient(model, two_losses, MiniBatch(), shared=model.trunk.parameters())
    mg.backward(BATCHES[0])
    model.trunk.requires_grad_(False)
    for _ in range(2):
        with pytest.raises(InvalidOption, match="at least one trainable parameter"):
            mg.backward(BATCHES[0])
    model.trunk.requires_grad_(True)
    mg.backward(BATCHES[0])
    assert mg.t == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model": 3}, "model must be a torch.nn.Module, found int"),
        ({"losses": "mse"}, "losses must be a function"),
        ({"estimator": Recursive}, "estimator must be an Estimator such as .* found <class"),
        ({"estimator": None}, "estimator must be an Estimator such as .* found None"),
        ({"weighting": 0.5}, "weighting must be a Weighting or a function .* found 0.5"),
        ({"micro_batch": 0}, "micro_batch must be a positive integer, found 0"),
        ({"batch_size": 8}, "batch_size must be a function .* found 8"),
        ({"engine": "turbo"}, "engine must be one of 'auto', 'rowwise', 'batched', 'compiled', found 'turbo'"),
        ({"shared": [torch.zeros(1)]}, "shared must hold parameters of the model, found Tensor at position 0"),
        ({"shard": True}, "found process_group=None, shard=True without it"),
        ({"process_group": "world"}, "found process_group='world', shard=False without it"),
    ],
)
def test_arguments_that_cannot_work(options: dict[str, Any], message: str) -> None:
    model = two_heads()
    before = vector(model)
    arguments = {"model": model, "losses": two_losses, "estimator": MiniBatch()} | options
    with pytest.raises(InvalidOption, match=message) as caught:
        MultiGradient(**arguments)
    assert isinstance(caught.value, StimulusError)
    assert torch.equal(vector(model), before)
