"""Models and training loops as they come: dtypes, sharing, branches, recurrent layers, autocast, optimizers."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm, weight_norm

from stimulus_moo import Fixed, HeavyBall, MiniBatch, MultiGradient, Recursive, Storm, Tracking
from tests.database import ESTIMATORS
from tests.harness import cut, data, direction, jacobian, stored_rows, train, two_heads, two_losses, vector

COLUMNS = data(24)
BATCHES = cut(COLUMNS, 6)
HALF = torch.tensor([0.5, 0.5], dtype=torch.float64)


class Reference:
    """STIMULUS with a second copy of the model, dense rows and plain autograd."""

    def __init__(self, model: nn.Module, losses: Any, anchor: Any, period: int) -> None:
        self.model, self.losses, self.anchor, self.period = model, losses, anchor, period
        self.u = torch.zeros(())
        self.last: Any = None

    def step(self, t: int, batch: Any) -> Tensor:
        if t % self.period == 0:
            self.u = jacobian(self.model, self.losses, self.anchor)
        else:
            now, before = (jacobian(model, self.losses, batch) for model in (self.model, self.last))
            self.u = self.u + now - before
        self.last = copy.deepcopy(self.model)
        return self.u


def descend(model: nn.Module, lr: float = 0.05) -> None:
    with torch.no_grad():
        for p in model.parameters():
            if p.grad is not None:
                p -= lr * p.grad


def compare(model: nn.Module, losses: Any, anchor: Any, batches: list[Any], atol: float = 1e-12) -> MultiGradient:
    """Train with Recursive and check every row against the reference."""
    reference = Reference(model, losses, anchor, 3)
    mg = MultiGradient(model, losses, Recursive([anchor], 3))
    for t, batch in enumerate(batches):
        step = mg.backward(batch)
        expected = reference.step(t, batch)
        torch.testing.assert_close(stored_rows(mg), expected, rtol=0, atol=atol)
        d = step.weights.double() @ expected
        torch.testing.assert_close(direction(model), d, rtol=0, atol=max(atol, 1e-12))
        descend(model)
    return mg


# Architectures


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(4, 3, num_layers=2, batch_first=True, dtype=torch.float64)
        self.head = nn.Linear(3, 2, dtype=torch.float64)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        out = self.head(self.lstm(x[:, None].repeat(1, 3, 1))[0][:, -1])
        return out[:, 0], out[:, 1]


class Attentive(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True, dtype=torch.float64)
        self.head = nn.Linear(4, 2, dtype=torch.float64)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        tokens = torch.stack([x, x.flip(1), x.roll(1, 1)], dim=1)
        out = self.head(self.attention(tokens, tokens, tokens)[0].mean(1))
        return out[:, 0], out[:, 1]


class Tied(nn.Module):
    """One matrix used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4, dtype=torch.float64)
        self.second = nn.Linear(4, 4, dtype=torch.float64)
        self.second.weight = self.first.weight

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        out = self.second(torch.tanh(self.first(x)))
        return out[:, 0], out[:, 1]


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = weight_norm(nn.Linear(4, 5, dtype=torch.float64))
        self.head = nn.Linear(5, 2, dtype=torch.float64)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        out = self.head(torch.tanh(self.body(x)))
        return out[:, 0], out[:, 1]


class Empty(nn.Module):
    """A parameter without entries and one without dimensions."""

    def __init__(self) -> None:
        super().__init__()
        self.none = nn.Parameter(torch.zeros(0, 3, dtype=torch.float64))
        self.scale = nn.Parameter(torch.tensor(1.5, dtype=torch.float64))
        self.head = nn.Linear(4, 2, dtype=torch.float64)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        out = self.head(x) * self.scale + self.none.sum()
        return out[:, 0], out[:, 1]


@pytest.mark.parametrize("kind", [Recurrent, Attentive, Tied, Normed, Empty])
def test_architectures_follow_the_reference(kind: Any) -> None:
    torch.manual_seed(0)
    compare(kind(), two_losses, COLUMNS, BATCHES)


def test_a_tied_parameter_has_one_row() -> None:
    torch.manual_seed(0)
    mg = compare(Tied(), two_losses, COLUMNS, BATCHES)
    assert list(mg.rows()[0]) == ["first.weight", "first.bias", "second.bias"]


def test_spectral_norm_moves_its_buffers_as_in_ordinary_training() -> None:
    torch.manual_seed(0)
    model = two_heads(spectral_norm(nn.Linear(5, 5, dtype=torch.float64)))
    plain = copy.deepcopy(model)
    mg = MultiGradient(model, two_losses, Storm(0.3))
    for batch in BATCHES:
        for p, q in zip(plain.parameters(), model.parameters(), strict=True):
            p.data.copy_(q.data)
        mg.backward(batch)
        plain(batch[0])
        for a, b in zip(plain.buffers(), model.buffers(), strict=True):
            assert torch.equal(a, b)
        descend(model)


def test_sparse_embedding_gradients() -> None:
    class Table(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(6, 3, sparse=True, dtype=torch.float64)
            self.head = nn.Linear(3, 2, dtype=torch.float64)

    def losses(model: Table, index: Tensor) -> tuple[Tensor, Tensor]:
        out = model.head(model.table(index))
        return out[:, 0].square().mean(), (out[:, 1] - 1).square().mean()

    def dense_losses(model: Table, index: Tensor) -> tuple[Tensor, Tensor]:
        model.table.sparse = False
        return losses(model, index)

    torch.manual_seed(0)
    model = Table()
    dense = copy.deepcopy(model)
    batches = [torch.tensor([0, 1, 1]), torch.tensor([2, 5, 5]), torch.tensor([3, 4, 0]), torch.tensor([1, 1, 1])]
    anchor = torch.arange(6)
    sparse_path = train(MultiGradient(model, losses, Recursive([anchor], 3)), batches)
    dense_path = train(MultiGradient(dense, dense_losses, Recursive([anchor], 3)), batches)
    assert torch.equal(sparse_path, dense_path)
    assert model.table.weight.grad is not None
    assert model.table.weight.grad.layout == torch.strided


# Reach that changes between calls


class Branching(nn.Module):
    """Uses one of two experts, as the batch says."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Linear(4, 4, dtype=torch.float64)
        self.experts = nn.ModuleList([nn.Linear(4, 2, dtype=torch.float64) for _ in range(2)])

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        which = int(x[0, 0] > 0)
        out = self.experts[which](torch.tanh(self.trunk(x)))
        return out[:, 0], out[:, 1]


def batches_of_either_branch() -> list[Any]:
    found = []
    for k, (x, y) in enumerate(BATCHES * 2):
        x = x.clone()
        x[0, 0] = 1.0 if k % 3 == 0 else -1.0
        found.append((x, y))
    return found


def test_mini_batch_gives_only_what_the_batch_reaches() -> None:
    torch.manual_seed(0)
    model = Branching()
    mg = MultiGradient(model, two_losses, MiniBatch())
    for batch in batches_of_either_branch():
        used = int(batch[0][0, 0] > 0)
        mg.backward(batch)
        rows = jacobian(model, two_losses, batch)
        assert [p.grad is None for p in model.experts[1 - used].parameters()] == [True, True]
        assert all(p.grad is not None for p in model.experts[used].parameters())
        weights = MultiGradient(model, two_losses, MiniBatch()).backward(batch).weights
        torch.testing.assert_close(direction(model), weights @ rows, rtol=0, atol=1e-14)
        descend(model)


def test_recursive_keeps_what_earlier_batches_reached() -> None:
    torch.manual_seed(0)
    batches = batches_of_either_branch()
    mg = compare(Branching(), two_losses, batches[0], batches)  # the anchor reaches one expert only
    assert all(p.grad is not None for p in mg.objective.model.parameters())


@pytest.mark.parametrize("name", [*(name for name, info in ESTIMATORS.items() if info.pairs), "one branch"])
def test_resume_with_a_changing_reach_is_exact(name: str) -> None:
    """How rows are cut into blocks decides the rounding, so it belongs to the state."""
    batches = batches_of_either_branch()

    def build() -> MultiGradient:
        torch.manual_seed(0)
        if name == "one branch":  # the anchor reaches one expert, the step after it the other
            return MultiGradient(Branching(), two_losses, Recursive(batches[:1], 2))
        return MultiGradient(Branching(), two_losses, ESTIMATORS[name].build())

    whole = build()
    expected = train(whole, batches)
    for stop in range(1, len(batches)):
        first, second = build(), build()
        train(first, batches[:stop])
        second.objective.model.load_state_dict(first.objective.model.state_dict())
        second.load_state_dict(first.state_dict())
        assert torch.equal(train(second, batches[stop:]), expected[stop:])


# Precision


class Mixed(nn.Module):
    """A float32 trunk, a float64 and a bfloat16 head."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Linear(4, 5)
        self.left = nn.Linear(5, 1, dtype=torch.float64)
        self.right = nn.Linear(5, 1, dtype=torch.bfloat16)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        hidden = torch.tanh(self.trunk(x.float()))
        return self.left(hidden.double())[:, 0], self.right(hidden.bfloat16())[:, 0].float()


def mixed_losses(model: nn.Module, batch: Any) -> tuple[Tensor, Tensor]:
    x, y = batch
    left, right = model(x)
    return (left - y[:, 0]).square().mean(), (right - y[:, 1].float()).square().mean()


def test_several_dtypes_in_one_model() -> None:
    torch.manual_seed(0)
    model = Mixed()
    mg = MultiGradient(model, mixed_losses, Recursive([COLUMNS], 3))
    # the recursion adds float32 and bfloat16 gradients, so the rows agree to float32 rounding
    reference = Reference(model, mixed_losses, COLUMNS, 3)
    for t, batch in enumerate(BATCHES):
        mg.backward(batch)
        torch.testing.assert_close(stored_rows(mg), reference.step(t, batch), rtol=0, atol=1e-6)
        assert all(p.grad is not None and p.grad.dtype == p.dtype for p in model.parameters())
        descend(model)
    kinds = {name: part.dtype for row in mg.rows() for name, part in row.items()}
    assert kinds["left.weight"] == torch.float64
    assert kinds["trunk.weight"] == kinds["right.weight"] == torch.float32


def test_bfloat16_parameters_have_float32_rows() -> None:
    model = two_heads(dtype=torch.bfloat16)
    batches = [tuple(column.bfloat16() for column in batch) for batch in BATCHES]
    mg = MultiGradient(model, two_losses, Tracking(1e-3))
    mg.backward(batches[0])
    first = stored_rows(mg)
    for _ in range(9):
        mg.backward(batches[0])
    # y_t = (1 - (1 - beta)^t) g: bfloat16 rows would stop growing, as beta is below their precision
    growth = (1 - 0.999**10) / 0.001
    torch.testing.assert_close(stored_rows(mg), growth * first, rtol=1e-5, atol=1e-10)
    assert {part.dtype for row in mg.rows() for part in row.values()} == {torch.float32}


def float_losses(model: nn.Module, batch: Any) -> tuple[Tensor, Tensor]:
    x, y = batch
    left, right = model(x)
    return (left.float() - y[:, 0]).square().mean(), (right.float() - y[:, 1]).square().mean()


def autocast_losses(model: nn.Module, batch: Any) -> tuple[Tensor, Tensor]:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return float_losses(model, batch)


@pytest.mark.parametrize("inside", [False, True])
def test_autocast_compares_the_right_weights(inside: bool) -> None:
    """Autocast keeps low-precision copies of the weights; those of x_t must not serve at x_{t-1}."""
    columns = data(24, dtype=torch.float32)
    batches = cut(columns, 6) * 2
    model = two_heads(dtype=torch.float32)
    used = autocast_losses if inside else float_losses
    mg = MultiGradient(model, used, Recursive([columns], 3), lambda gramian: torch.ones(2) / 2)
    reference = Reference(model, autocast_losses, columns, 3)
    moved = 0.0
    for t, batch in enumerate(batches):
        if inside:
            mg.backward(batch)
        else:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                mg.backward(batch)
        expected = reference.step(t, batch)
        before = stored_rows(mg)
        torch.testing.assert_close(before, expected, rtol=0, atol=1e-6)
        moved = max(moved, float((before - jacobian(model, autocast_losses, batch)).abs().max()))
        descend(model, lr=0.3)
    assert moved > 0.05


@pytest.mark.parametrize("name", [name for name, info in ESTIMATORS.items() if not info.anchor])
def test_autocast_around_the_whole_loop_sees_every_step(name: str) -> None:
    """Its copies of the weights last as long as the context; those of the step before must not serve at the next."""
    batches = cut(data(24, dtype=torch.float32), 6)
    build = ESTIMATORS[name].build
    expected = train(MultiGradient(two_heads(dtype=torch.float32), autocast_losses, build()), batches, lr=0.3)
    mg = MultiGradient(two_heads(dtype=torch.float32), float_losses, build())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = train(mg, batches, lr=0.3)
    assert torch.equal(found, expected)


def test_gramian_and_direction_are_in_full_precision_under_autocast() -> None:
    columns = data(24, dtype=torch.float32)
    model = two_heads(dtype=torch.float32)
    seen = []

    def weighting(gramian: Tensor) -> Tensor:
        seen.append(gramian)
        assert not torch.is_autocast_enabled("cpu")
        return HALF

    mg = MultiGradient(model, float_losses, Recursive([columns], 3), weighting)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mg.backward()
        assert torch.is_autocast_enabled("cpu")
    u = stored_rows(mg)
    torch.testing.assert_close(seen[0], u @ u.T, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(direction(model), HALF @ u, rtol=0, atol=1e-7)


def test_low_precision_overflow_is_a_typed_error() -> None:
    from stimulus_moo import NonFiniteError

    model = nn.Linear(2, 1, dtype=torch.bfloat16)
    mg = MultiGradient(model, lambda m, x: (m(x).mean() * 1e38 * 1e38, m(x).mean()), MiniBatch())
    with pytest.raises(NonFiniteError, match="objective 0"):
        mg.backward(torch.ones(3, 2, dtype=torch.bfloat16))


# Scales


def test_an_objective_without_slope_takes_all_the_weight() -> None:
    model = two_heads()
    mg = MultiGradient(model, lambda m, b: (two_losses(m, b)[0], two_losses(m, b)[1] * 0.0), MiniBatch())
    step = mg.backward(BATCHES[0])
    assert step.weights.tolist() == [0.0, 1.0]
    assert float(step.sq_norm) == 0.0
    assert all(p.grad is not None and not p.grad.any() for p in model.parameters())


def test_objectives_scaled_far_apart() -> None:
    model = two_heads()
    mg = MultiGradient(model, lambda m, b: (two_losses(m, b)[0] * 1e8, two_losses(m, b)[1]), MiniBatch())
    mg.backward(BATCHES[0])
    rows = jacobian(model, lambda m, b: (two_losses(m, b)[0] * 1e8, two_losses(m, b)[1]), BATCHES[0])
    d = direction(model)
    slopes = rows @ d / rows.norm(dim=1)
    assert float(slopes.min()) >= float(d @ d / rows.norm(dim=1).max()) - 1e-12


# The user's loop


def loop(optimizer: Callable[[Any], torch.optim.Optimizer], **extras: Any) -> tuple[Tensor, Tensor]:
    """Train with the library, and with plain autograd on the same weighted loss; the paths of both."""
    paths = []
    for plain in (False, True):
        model = two_heads()
        steps = optimizer(model.parameters())
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(steps, 8)
        mg = MultiGradient(model, two_losses, MiniBatch(), Fixed([0.3, 0.7]))
        path = []
        for batch in BATCHES * 2:
            if extras.get("zero") is not None:
                steps.zero_grad(set_to_none=extras["zero"])
            if plain:
                steps.zero_grad()
                left, right = two_losses(model, batch)
                (0.3 * left + 0.7 * right).backward()
            else:
                mg.backward(batch)
            if "norm" in extras:
                nn.utils.clip_grad_norm_(model.parameters(), extras["norm"])
            if "value" in extras:
                nn.utils.clip_grad_value_(model.parameters(), extras["value"])
            steps.step()
            scheduler.step()
            path.append(vector(model))
        paths.append(torch.stack(path))
    return paths[0], paths[1]


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01, nesterov=True),
    "Adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=0.01),
    "HeavyBall": lambda p: HeavyBall(p, lr=0.1, momentum=0.5, weight_decay=0.01),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers_and_schedules_work_on_the_gradients(name: str) -> None:
    found, expected = loop(OPTIMIZERS[name])
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("extras", [{"zero": True}, {"zero": False}, {"norm": 0.1}, {"value": 0.01}])
def test_zeroing_and_clipping_work_on_the_gradients(extras: dict[str, Any]) -> None:
    found, expected = loop(OPTIMIZERS["SGD"], **extras)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("meddle", ["skip", "clip", "zero", "project"])
def test_the_recursion_follows_whatever_moved_the_parameters(meddle: str) -> None:
    model = two_heads()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    mg = MultiGradient(model, two_losses, Recursive([COLUMNS], 8))
    reference = Reference(model, two_losses, COLUMNS, 8)
    for t, batch in enumerate(BATCHES * 2):
        mg.backward(batch)
        torch.testing.assert_close(stored_rows(mg), reference.step(t, batch), rtol=0, atol=1e-12)
        if meddle == "clip":
            nn.utils.clip_grad_norm_(model.parameters(), 1e-2)
        if not (meddle == "skip" and t % 2):
            optimizer.step()
        if meddle == "zero":
            optimizer.zero_grad(set_to_none=False)
        if meddle == "project":
            with torch.no_grad():
                for p in model.parameters():
                    p.clamp_(-0.3, 0.3)


def test_changing_the_gradients_does_not_change_the_rows() -> None:
    mg = MultiGradient(two_heads(), two_losses, Storm(0.3))
    mg.backward(BATCHES[0])
    before = stored_rows(mg)
    for p in mg.objective.parameters:
        assert p.grad is not None
        p.grad.zero_()
    assert torch.equal(stored_rows(mg), before)
