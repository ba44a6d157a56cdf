"""Random state, buffers and parameters come back exactly as they were."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from stimulus_moo import Filtered, MultiGradient, Recursive, Safeguard, StimulusWarning
from stimulus_moo._engine.differentiation import full_precision
from stimulus_moo._engine.replay import ParameterSwap, Snapshot
from tests.harness import same


class Buffers(nn.Module):
    """Buffers written in place, replaced, empty, expanded, shared and born late."""

    written: Tensor
    replaced: Tensor
    expanded: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))
        self.register_buffer("written", torch.zeros(2))
        self.register_buffer("replaced", torch.zeros(2))
        self.register_buffer("empty", None)
        self.register_buffer("expanded", torch.arange(3.0).expand(4, 3))
        self.child = nn.BatchNorm1d(2)
        self.child.register_buffer("shared", self.written)

    def forward(self, x: Tensor) -> Tensor:
        self.written += 1
        self.replaced = self.replaced + 1
        self.empty = torch.ones(1)
        if "late" not in self._buffers:
            self.register_buffer("late", torch.ones(1))
        return self.child(x) * self.weight


def guard(model: nn.Module) -> Snapshot:
    return Snapshot(list(model.modules()))


def buffers(model: nn.Module) -> dict[str, Tensor]:
    return {name: buffer.clone() for name, buffer in model.named_buffers()}


def test_buffers_come_back_in_value_and_in_identity() -> None:
    model = Buffers()
    before, objects = buffers(model), dict(model.named_buffers())
    taken = guard(model)
    for _ in range(2):  # a guard can be used again
        model(torch.randn(5, 2))
        assert not same(buffers(model), before)
        taken.restore()
        assert same(buffers(model), before)
        assert all(model.get_buffer(name) is buffer for name, buffer in objects.items())
        assert model.empty is None


def test_random_state_comes_back() -> None:
    model = nn.Linear(1, 1)
    taken = guard(model)
    first = torch.rand(3)
    taken.restore()
    assert torch.equal(torch.rand(3), first)
    taken.restore()
    assert torch.equal(torch.rand(3), first)


@pytest.mark.parametrize("large", [False, True])
def test_swapped_puts_values_in_and_brings_back_bit_for_bit(large: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if large:
        monkeypatch.setattr("stimulus_moo._engine.replay.SMALL", 0)
    own = [nn.Parameter(torch.tensor([0.1, 0.2])), nn.Parameter(torch.tensor(3.0, dtype=torch.float64))]
    others = [torch.tensor([1.1, 1.2]), torch.tensor(4.0, dtype=torch.float64)]
    before = [p.detach().clone() for p in own], [o.clone() for o in others]
    with ParameterSwap(own, others):
        assert same([p.detach() for p in own], before[1])
        assert same(others, before[0 if large else 1])  # large ones wait in the others' place
    assert same(([p.detach() for p in own], others), before)
    with pytest.raises(KeyboardInterrupt), ParameterSwap(own, others):
        raise KeyboardInterrupt
    assert same(([p.detach() for p in own], others), before)


def test_swapped_drops_low_precision_copies_of_the_other_point() -> None:
    layer = nn.Linear(1, 1, bias=False)
    nn.init.constant_(layer.weight, 1.0)
    other = [torch.full((1, 1), 2.0)]
    x = torch.ones(1, 1)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        with ParameterSwap([layer.weight], other):
            torch.clear_autocast_cache()
            assert layer(x).item() == 2.0  # caches a bfloat16 copy of the weight 2
        assert layer(x).item() == 1.0


def test_full_precision_switches_autocast_off_and_on_again() -> None:
    a = torch.tensor([[1.0 + 2**-12]])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert (a @ a).dtype == torch.bfloat16
        with full_precision([torch.device("cpu")]):
            assert (a @ a).dtype == torch.float32
        assert (a @ a).dtype == torch.bfloat16
    assert not torch.is_autocast_enabled("cpu")


Losses = Callable[[nn.Module, Tensor], Tensor]
X = torch.randn(12, 6, generator=torch.Generator().manual_seed(0))


def plain(model: nn.Module, x: Tensor) -> Tensor:
    return model(x).square().mean(0)


def foreign(*, at: int) -> Losses:
    """Losses during whose evaluation number ``at`` another thread draws from torch's global generator."""
    calls = 0

    def losses(model: nn.Module, x: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        if calls == at:
            thread = threading.Thread(target=torch.rand, args=(1,))
            thread.start()
            thread.join()
        return plain(model, x)

    return losses


def dependent(model: nn.Module, x: Tensor) -> Tensor:
    """The number of draws depends on the parameters."""
    if next(model.parameters()).detach().sum() == dependent.start:  # type: ignore[attr-defined]
        x = x + torch.rand(1)
    return plain(model, x)


def run(losses: Losses, estimator: Any, width: int = 5, *, guard: bool = False, **options: Any) -> list[str]:
    """Three steps with dropout; returns the messages of the warnings."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, width), nn.Dropout(0.5), nn.Linear(width, 2))
    dependent.start = next(model.parameters()).detach().sum()  # type: ignore[attr-defined]
    mg = MultiGradient(model, losses, estimator, **options)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    if guard:
        Safeguard(optimizer, mg)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", StimulusWarning)
        for _ in range(3):
            mg.backward(X)
            optimizer.step()
    return [str(warning.message) for warning in caught]


CASES: dict[str, dict[str, Any]] = {
    "staged": {},
    "in place": {"width": 8192},
    "batched": {"engine": "batched"},
    "micro batch": {"micro_batch": 5},
    "safeguard": {"guard": True},
}


@pytest.mark.parametrize("point", [0, 1])
@pytest.mark.parametrize("case", CASES)
def test_a_draw_of_another_thread_is_reported(case: str, point: int) -> None:
    pieces = 3 if case == "micro batch" else 1
    found = run(foreign(at=pieces * (1 + point) + 1), Recursive([X], 10), **CASES[case])  # after the anchor
    assert len(found) == 1
    assert "torch.Generator of its own" in found[0]
    assert "at step 1 " in found[0]


@pytest.mark.parametrize("at", [3, 4, 5, 6])  # the two halves at x_{t-1}, then at x_t
def test_a_draw_of_another_thread_is_reported_where_halves_are_compared(at: int) -> None:
    assert len(run(foreign(at=at), Filtered(probe=1))) == 1


def test_draws_that_depend_on_the_parameters_are_reported_once() -> None:
    found = run(dependent, Recursive([X], 10))
    assert len(found) == 1
    assert "depends on its parameters" in found[0]


@pytest.mark.parametrize("case", CASES)
def test_dropout_alone_is_not_reported(case: str) -> None:
    assert run(plain, Recursive([X], 10), **CASES[case]) == []
