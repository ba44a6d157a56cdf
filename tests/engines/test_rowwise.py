"""One backward pass per objective."""

from __future__ import annotations

import gc

import pytest
import torch
from torch import nn

from stimulus_moo.engines import reached, rowwise
from tests.harness import data, jacobian, two_heads, two_losses


def test_rows_are_the_jacobian() -> None:
    model = two_heads()
    parameters = list(model.parameters())
    losses = two_losses(model, data())
    expected = jacobian(model, two_losses, data())
    for objective, members, gradients in rowwise(losses, parameters, reached(losses, parameters)):
        dense = [torch.zeros_like(p) for p in parameters]
        for i, gradient in zip(members, gradients, strict=True):
            assert gradient is not None
            dense[i] = gradient
        assert torch.equal(torch.cat([part.flatten() for part in dense]), expected[objective])


def test_the_graph_is_freed_with_the_last_row() -> None:
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
    rows = list(rowwise(losses, [x], [[0], [0]]))
    assert [float(gradients[0]) for _, _, gradients in rows] == [2.0, 3.0]
    assert freed == [1, 1]
    with pytest.raises(RuntimeError, match="second time"):
        torch.autograd.grad(losses[0], [x])


def test_sparse_gradients_are_handed_on_dense() -> None:
    table = nn.Embedding(4, 2, sparse=True)
    loss = table(torch.tensor([1, 1, 3])).sum()
    ((_, _, (gradient,)),) = rowwise([loss], [table.weight], [[0]])
    assert gradient is not None
    assert gradient.layout == torch.strided
    assert gradient.tolist() == [[0, 0], [2, 2], [0, 0], [1, 1]]


def test_a_row_that_is_not_taken_leaves_autocast_alone() -> None:
    x = nn.Parameter(torch.ones(2, 2))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = (x @ x).sum()
        rows = rowwise([loss, loss], [x], [[0], [0]])
        next(rows)  # and the second is never asked for
        assert (x @ x).dtype == torch.bfloat16
    assert not torch.is_autocast_enabled("cpu")
    del rows
    gc.collect()
    assert not torch.is_autocast_enabled("cpu")
