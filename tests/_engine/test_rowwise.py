"""The ways to differentiate: by rows, gradient by gradient, and all rows in one vectorised pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor, nn

from stimulus_moo._engine.differentiation import Engine, batched, rowwise, stream
from tests.harness import data, jacobian, two_heads, two_losses

Differentiate = Callable[..., None]


class Collector:
    """Keeps what an engine gives, by objective and parameter, and the order in which it came."""

    def __init__(self) -> None:
        self.found: dict[int, dict[int, Tensor]] = {}
        self.ended: list[int] = []

    def take_row(self, objective: int, gradients: Sequence[Tensor | None]) -> None:
        for i, gradient in enumerate(gradients):
            if gradient is not None:
                self.take_one(objective, i, gradient)
        self.end_row(objective)

    def take_one(self, objective: int, i: int, gradient: Tensor) -> None:
        assert i not in self.found.setdefault(objective, {})
        self.found[objective][i] = gradient.clone()

    def end_row(self, objective: int) -> None:
        self.ended.append(objective)

    def take_stacked(self, gradients: Sequence[Tensor | None]) -> None:
        for i, stacked in enumerate(gradients):
            if stacked is not None:
                for objective, gradient in enumerate(stacked):
                    self.take_one(objective, i, gradient)

    def dense(self, objective: int, parameters: Sequence[Tensor]) -> Tensor:
        row = self.found[objective]
        return torch.cat([row.get(i, torch.zeros_like(p)).flatten() for i, p in enumerate(parameters)])


def by_rows(losses: Sequence[Tensor], parameters: Sequence[Tensor], sink: Collector) -> None:
    for objective, row in enumerate(rowwise(losses, parameters)):
        sink.take_row(objective, row)


def all_at_once(losses: Sequence[Tensor], parameters: Sequence[Tensor], sink: Collector) -> None:
    sink.take_stacked(batched(losses, parameters))


BY_ROWS = pytest.mark.parametrize("differentiate", [by_rows, stream])
ALL = pytest.mark.parametrize("differentiate", [by_rows, stream, all_at_once])


@ALL
def test_rows_are_the_jacobian(differentiate: Differentiate) -> None:
    model = two_heads()
    parameters = list(model.parameters())
    expected = jacobian(model, two_losses, data())
    collector = Collector()
    differentiate(two_losses(model, data()), parameters, collector)
    for objective in (0, 1):
        torch.testing.assert_close(collector.dense(objective, parameters), expected[objective], rtol=1e-6, atol=1e-7)


@BY_ROWS
def test_what_a_loss_does_not_reach_is_not_given(differentiate: Differentiate) -> None:
    model = two_heads()
    names = [name for name, _ in model.named_parameters()]
    collector = Collector()
    differentiate(two_losses(model, data()), list(model.parameters()), collector)
    assert not any(names[i].startswith("right") for i in collector.found[0])
    assert not any(names[i].startswith("left") for i in collector.found[1])
    assert collector.ended == [0, 1]


@BY_ROWS
def test_the_graph_is_freed_with_the_last_row(differentiate: Differentiate) -> None:
    freed = []

    class Watched(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):  # type: ignore[no-untyped-def]
            ctx.save_for_backward(x)
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):  # type: ignore[no-untyped-def]
            freed.append(len(ctx.saved_tensors))
            return gradient

    x = nn.Parameter(torch.tensor(1.0))
    y = Watched.apply(x)
    losses = [y * 2, y * 3]
    collector = Collector()
    differentiate(losses, [x], collector)
    assert [float(collector.found[s][0]) for s in (0, 1)] == [2.0, 3.0]
    assert freed == [1, 1]
    with pytest.raises(RuntimeError, match="second time"):
        torch.autograd.grad(losses[0], [x])


@BY_ROWS
def test_sparse_gradients_are_handed_on_dense(differentiate: Differentiate) -> None:
    table = nn.Embedding(4, 2, sparse=True)
    collector = Collector()
    differentiate([table(torch.tensor([1, 1, 3])).sum()], [table.weight], collector)
    gradient = collector.found[0][0]
    assert gradient.layout == torch.strided
    assert gradient.tolist() == [[0, 0], [2, 2], [0, 0], [1, 1]]


def test_streaming_leaves_gradients_and_hooks_as_they_were() -> None:
    model = two_heads()
    parameters = list(model.parameters())
    kept = [torch.full_like(p, 7.0) for p in parameters[:-1]]
    for parameter, gradient in zip(parameters, kept, strict=False):
        parameter.grad = gradient
    stream(two_losses(model, data()), parameters, Collector())
    assert all(p.grad is g for p, g in zip(parameters, kept, strict=False))
    assert all(bool((g == 7.0).all()) for g in kept)
    assert parameters[-1].grad is None
    assert not any(p._post_accumulate_grad_hooks for p in parameters)


def test_a_sink_that_raises_ends_the_stream_and_loses_nothing() -> None:
    model = two_heads()
    parameters = list(model.parameters())
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)

    class Refuses(Collector):
        def take_one(self, objective: int, i: int, gradient: Tensor) -> None:
            if objective == 1:
                raise ValueError("refused")
            super().take_one(objective, i, gradient)

    collector = Refuses()
    with pytest.raises(ValueError, match="refused"):
        stream(two_losses(model, data()), parameters, collector)
    assert collector.ended == [0]
    assert all(bool((p.grad == 1.0).all()) for p in parameters if p.grad is not None)
    assert all(p.grad is not None and not p._post_accumulate_grad_hooks for p in parameters)


def test_somebody_elses_hooks_are_not_called() -> None:
    model = two_heads()
    parameters = list(model.parameters())
    engine = Engine("rowwise", model)
    assert engine.accumulates(parameters)
    handle = parameters[0].register_post_accumulate_grad_hook(lambda p: None)
    assert not engine.accumulates(parameters)
    handle.remove()
    assert engine.accumulates(parameters)
